! A region in Fortran: `regions PATH`. Stops with a number if something is not as expected.
program regions
    use, intrinsic :: iso_c_binding
    use tameike_dsm
    implicit none

    integer(c_int64_t), parameter :: page = 4096
    character(4096) :: path
    type(c_ptr) :: region, outside
    type(tameike_dsm_counters) :: stats
    integer(c_int64_t) :: previous, block
    integer(c_int64_t), pointer :: numbers(:), last

    call get_command_argument(1, path)
    call expect(tameike_dsm_attach(path, 1_c_int, 0_c_int, region), -2)
    if (c_associated(region)) stop 100
    if (tameike_dsm_message(-2_c_int) /= "No such file or directory") stop 101
    call expect(tameike_dsm_create(path, 3 * page - 1, 1_c_int, 0_c_int, region), 0)
    if (tameike_dsm_size(region) /= 3 * page) stop 102
    outside = tameike_dsm_at(region, 3 * page)
    if (c_associated(outside)) stop 103
    outside = tameike_dsm_at(region, -1_c_int64_t)
    if (c_associated(outside)) stop 104

    call c_f_pointer(tameike_dsm_address(region), numbers, [3 * page / 8])
    call c_f_pointer(tameike_dsm_at(region, 3 * page - 8), last)
    numbers = 7
    last = 8
    if (any(numbers(:size(numbers) - 1) /= 7)) stop 105
    if (numbers(size(numbers)) /= 8) stop 106
    call expect(tameike_dsm_flush(region), 0)
    call expect(tameike_dsm_update(region), 0)
    call expect(tameike_dsm_lock(region, 5_c_int32_t), 0)
    call expect(tameike_dsm_unlock(region, 5_c_int32_t), 0)
    call expect(tameike_dsm_unlock(region, 5_c_int32_t), -1)
    call expect(tameike_dsm_fetch_add(region, 8_c_int64_t, -2_c_int64_t, previous), 0)
    if (previous /= 7) stop 107
    call expect(tameike_dsm_barrier(region), 0)
    if (numbers(2) /= 5) stop 108
    call expect(tameike_dsm_allocate(region, 100_c_int64_t, 64_c_int64_t, block), 0)
    if (block /= 0) stop 114
    call expect(tameike_dsm_allocate(region, 100_c_int64_t, 64_c_int64_t, block), 0)
    if (block /= 128) stop 115
    call expect(tameike_dsm_deallocate(region, block), 0)
    call expect(tameike_dsm_deallocate(region, block), -22)
    call expect(tameike_dsm_touch(region, page, page, 1_c_int), 0)
    call expect(tameike_dsm_touch(region, page, 3 * page, 0_c_int), -22)
    call expect(tameike_dsm_stats(region, stats), 0)
    if (stats%pages /= 3) stop 109
    if (stats%write_faults < 1) stop 110
    call expect(tameike_dsm_detach(region), 0)

    call expect(tameike_dsm_attach(path, 1_c_int, TAMEIKE_DSM_MPROTECT, region), 0)
    call c_f_pointer(tameike_dsm_address(region), numbers, [3 * page / 8])
    if (numbers(2) /= 5) stop 111
    if (numbers(size(numbers)) /= 8) stop 112
    call expect(tameike_dsm_stats(region, stats), 0)
    if (stats%mechanism /= TAMEIKE_DSM_MPROTECT) stop 113
    call expect(tameike_dsm_free(region), 0)
    call expect(tameike_dsm_attach(path, 1_c_int, 0_c_int, region), -2)

contains

    subroutine expect(status, expected)
        integer(c_int), intent(in) :: status
        integer, intent(in) :: expected

        if (status == expected) return
        print *, "status ", status, ", not ", expected
        stop 1
    end subroutine
end program
