! Matrix product C = A * B in a shared memory region, with the columns divided among the processes: matmul.c in Fortran.
!
! Usage: matmul PATH N RANK PROCESSES
! Prints the seconds of the product, with its barriers, and the checksum of C, which does not depend on the number of processes.
program multiply
    use, intrinsic :: iso_c_binding
    use, intrinsic :: iso_fortran_env, only: error_unit
    use tameike_dsm
    implicit none

    character(4096) :: path
    type(c_ptr) :: region
    real(c_double), pointer, contiguous :: matrices(:, :, :), a(:, :), b(:, :), c(:, :)
    integer(c_int64_t) :: n, rank, processes, first, last, row, column, start, end, rate, checksum

    if (command_argument_count() /= 4) then
        write (error_unit, "(a)") "usage: matmul PATH N RANK PROCESSES"
        stop 2
    end if
    call get_command_argument(1, path)
    n = argument(2)
    rank = argument(3)
    processes = argument(4)
    call check(tameike_dsm_create(path, 3 * n * n * c_sizeof(1.0_c_double), int(processes, c_int), 0_c_int, region), path)
    call c_f_pointer(tameike_dsm_address(region), matrices, [n, n, 3_c_int64_t])
    a => matrices(:, :, 1)
    b => matrices(:, :, 2)
    c => matrices(:, :, 3)
    first = rank * n / processes + 1
    last = (rank + 1) * n / processes

    do column = first, last
        do row = 1, n
            a(row, column) = real(mod(row - 1 + 2 * (column - 1), 17_c_int64_t), c_double)
            b(row, column) = real(mod(3 * (row - 1) + column - 1, 13_c_int64_t), c_double)
        end do
    end do
    call check(tameike_dsm_barrier(region), "barrier")

    call system_clock(start, rate)
    c(:, first:last) = matmul(a, b(:, first:last))
    call check(tameike_dsm_barrier(region), "barrier")
    call system_clock(end)

    if (rank == 0) then
        checksum = 0
        do column = 1, n
            do row = 1, n
                checksum = checksum + nint(c(row, column), c_int64_t) * (mod((column - 1) * n + row - 1, 7_c_int64_t) + 1)
            end do
        end do
        print "(f0.6, 1x, i0)", real(end - start, c_double) / real(rate, c_double), checksum
    end if
    ! Before the others detach, which ends barriers.
    call check(tameike_dsm_barrier(region), "barrier")
    call check(tameike_dsm_detach(region), "detach")

contains

    function argument(position) result(number)
        integer, intent(in) :: position
        integer(c_int64_t) :: number
        character(32) :: text

        call get_command_argument(position, text)
        read (text, *) number
    end function

    subroutine check(status, what)
        integer(c_int), intent(in) :: status
        character(*), intent(in) :: what

        if (status >= 0) return
        write (error_unit, "(4a)") "matmul: ", trim(what), ": ", tameike_dsm_message(status)
        stop 1
    end subroutine
end program
