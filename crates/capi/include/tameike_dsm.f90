!> Memory that processes on all nodes of a job share: the functions tameike_dsm_*() of tameike.h for Fortran.
!>
!> Compile this file with the program, because the files of modules differ between compilers:
!>
!>     prefix=$(pkg-config --variable=includedir tameike)
!>     gfortran "$prefix/tameike_dsm.f90" program.f90 $(pkg-config --libs tameike)
!>
!> tameike.h describes each function. Here, names have trailing blanks removed, sizes and offsets are integer(c_int64_t), and a region is a
!> type(c_ptr). Functions return 0 or a negative number of errno.h, which tameike_dsm_message() describes.
!>
!> A procedure that calls a barrier, and has an array of the region as a dummy argument, declares that argument as `target` or
!> `asynchronous`: otherwise compilers assume that a call does not change it.
module tameike_dsm
    use, intrinsic :: iso_c_binding, only: c_associated, c_char, c_f_pointer, c_int, c_int32_t, c_int64_t, c_intptr_t, &
        c_null_char, c_null_ptr, c_ptr, c_size_t
    implicit none
    private

    public :: tameike_dsm_create, tameike_dsm_attach, tameike_dsm_address, tameike_dsm_size, tameike_dsm_flush
    public :: tameike_dsm_update, tameike_dsm_barrier, tameike_dsm_lock, tameike_dsm_unlock, tameike_dsm_fetch_add
    public :: tameike_dsm_allocate, tameike_dsm_deallocate
    public :: tameike_dsm_touch, tameike_dsm_stats, tameike_dsm_detach, tameike_dsm_free
    public :: tameike_dsm_at, tameike_dsm_message

    !> Flag: detect accesses by mprotect(2) instead of userfaultfd(2).
    integer(c_int), parameter, public :: TAMEIKE_DSM_MPROTECT = 1
    !> Flag: two nodes never store to the same page without a barrier, or a flush and an update, in between.
    integer(c_int), parameter, public :: TAMEIKE_DSM_ONE_WRITER = 2

    !> Results of barriers and locks after which a program may continue in another way.
    integer(c_int), parameter, public :: TAMEIKE_DSM_EPIPE = -32, TAMEIKE_DSM_EHOSTDOWN = -112, TAMEIKE_DSM_EOWNERDEAD = -130

    !> Counters of a region.
    type, bind(c), public :: tameike_dsm_counters
        integer(c_int64_t) :: read_faults
        integer(c_int64_t) :: write_faults
        integer(c_int64_t) :: pages_fetched
        integer(c_int64_t) :: pages_flushed
        integer(c_int64_t) :: bytes_flushed
        integer(c_int64_t) :: pages_dropped
        integer(c_int64_t) :: pages_merged
        integer(c_int64_t) :: barriers
        integer(c_int64_t) :: pages_evicted
        integer(c_int64_t) :: pages
        integer(c_int32_t) :: mechanism
    end type

    interface
        function create_of_c(path, size, processes, flags, region) result(status) bind(c, name="tameike_dsm_create")
            import :: c_char, c_int, c_int64_t, c_ptr
            character(kind=c_char), intent(in) :: path(*)
            integer(c_int64_t), value :: size
            integer(c_int), value :: processes
            integer(c_int), value :: flags
            type(c_ptr), intent(out) :: region
            integer(c_int) :: status
        end function

        function attach_of_c(path, processes, flags, region) result(status) bind(c, name="tameike_dsm_attach")
            import :: c_char, c_int, c_ptr
            character(kind=c_char), intent(in) :: path(*)
            integer(c_int), value :: processes
            integer(c_int), value :: flags
            type(c_ptr), intent(out) :: region
            integer(c_int) :: status
        end function

        !> Address of a region, for c_f_pointer().
        function tameike_dsm_address(region) result(address) bind(c, name="tameike_dsm_address")
            import :: c_ptr
            type(c_ptr), value :: region
            type(c_ptr) :: address
        end function

        !> Size in bytes, in whole pages.
        function tameike_dsm_size(region) result(size) bind(c, name="tameike_dsm_size")
            import :: c_int64_t, c_ptr
            type(c_ptr), value :: region
            integer(c_int64_t) :: size
        end function

        !> Sends the stores of this node to the file.
        function tameike_dsm_flush(region) result(status) bind(c, name="tameike_dsm_flush")
            import :: c_int, c_ptr
            type(c_ptr), value :: region
            integer(c_int) :: status
        end function

        !> Makes flushed stores of other nodes visible.
        function tameike_dsm_update(region) result(status) bind(c, name="tameike_dsm_update")
            import :: c_int, c_ptr
            type(c_ptr), value :: region
            integer(c_int) :: status
        end function

        !> Waits for all processes; each then sees the stores of the others.
        function tameike_dsm_barrier(region) result(status) bind(c, name="tameike_dsm_barrier")
            import :: c_int, c_ptr
            type(c_ptr), value :: region
            integer(c_int) :: status
        end function

        !> Takes a lock; TAMEIKE_DSM_EOWNERDEAD with the lock if a process has failed.
        function tameike_dsm_lock(region, lock) result(status) bind(c, name="tameike_dsm_lock")
            import :: c_int, c_int32_t, c_ptr
            type(c_ptr), value :: region
            integer(c_int32_t), value :: lock
            integer(c_int) :: status
        end function

        !> Flushes, and releases a lock.
        function tameike_dsm_unlock(region, lock) result(status) bind(c, name="tameike_dsm_unlock")
            import :: c_int, c_int32_t, c_ptr
            type(c_ptr), value :: region
            integer(c_int32_t), value :: lock
            integer(c_int) :: status
        end function

        !> Adds to the integer(c_int64_t) at an offset in bytes, and returns the number before.
        function tameike_dsm_fetch_add(region, offset, addend, previous) result(status) bind(c, name="tameike_dsm_fetch_add")
            import :: c_int, c_int64_t, c_ptr
            type(c_ptr), value :: region
            integer(c_int64_t), value :: offset
            integer(c_int64_t), value :: addend
            integer(c_int64_t), intent(out) :: previous
            integer(c_int) :: status
        end function

        !> Allocates a block of bytes at a multiple of `alignment`, and returns its offset.
        function tameike_dsm_allocate(region, bytes, alignment, offset) result(status) bind(c, name="tameike_dsm_allocate")
            import :: c_int, c_int64_t, c_ptr
            type(c_ptr), value :: region
            integer(c_int64_t), value :: bytes
            integer(c_int64_t), value :: alignment
            integer(c_int64_t), intent(out) :: offset
            integer(c_int) :: status
        end function

        !> Frees the block at an offset.
        function tameike_dsm_deallocate(region, offset) result(status) bind(c, name="tameike_dsm_deallocate")
            import :: c_int, c_int64_t, c_ptr
            type(c_ptr), value :: region
            integer(c_int64_t), value :: offset
            integer(c_int) :: status
        end function

        !> Makes bytes accessible to system calls; with a nonzero `write` to calls that store to them.
        function tameike_dsm_touch(region, offset, size, write) result(status) bind(c, name="tameike_dsm_touch")
            import :: c_int, c_int64_t, c_ptr
            type(c_ptr), value :: region
            integer(c_int64_t), value :: offset
            integer(c_int64_t), value :: size
            integer(c_int), value :: write
            integer(c_int) :: status
        end function

        !> Reads the counters.
        function tameike_dsm_stats(region, stats) result(status) bind(c, name="tameike_dsm_stats")
            import :: c_int, c_ptr, tameike_dsm_counters
            type(c_ptr), value :: region
            type(tameike_dsm_counters), intent(out) :: stats
            integer(c_int) :: status
        end function

        !> Flushes and detaches.
        function tameike_dsm_detach(region) result(status) bind(c, name="tameike_dsm_detach")
            import :: c_int, c_ptr
            type(c_ptr), value :: region
            integer(c_int) :: status
        end function

        !> Detaches, and removes the file.
        function tameike_dsm_free(region) result(status) bind(c, name="tameike_dsm_free")
            import :: c_int, c_ptr
            type(c_ptr), value :: region
            integer(c_int) :: status
        end function

        function strerror(number) result(text) bind(c, name="strerror")
            import :: c_int, c_ptr
            integer(c_int), value :: number
            type(c_ptr) :: text
        end function

        function strlen(text) result(length) bind(c, name="strlen")
            import :: c_ptr, c_size_t
            type(c_ptr), value :: text
            integer(c_size_t) :: length
        end function
    end interface

contains

    !> Creates the file of a region, and attaches to it. All processes may call it at the same time.
    function tameike_dsm_create(path, size, processes, flags, region) result(status)
        character(*), intent(in) :: path
        integer(c_int64_t), intent(in) :: size
        integer(c_int), intent(in) :: processes
        integer(c_int), intent(in) :: flags
        type(c_ptr), intent(out) :: region
        integer(c_int) :: status

        region = c_null_ptr
        status = create_of_c(trim(path) // c_null_char, size, processes, flags, region)
    end function

    !> Attaches to the region of an existing file.
    function tameike_dsm_attach(path, processes, flags, region) result(status)
        character(*), intent(in) :: path
        integer(c_int), intent(in) :: processes
        integer(c_int), intent(in) :: flags
        type(c_ptr), intent(out) :: region
        integer(c_int) :: status

        region = c_null_ptr
        status = attach_of_c(trim(path) // c_null_char, processes, flags, region)
    end function

    !> Address of the byte at an offset, for c_f_pointer(); null outside the region, and in a child of fork().
    function tameike_dsm_at(region, offset) result(address)
        type(c_ptr), intent(in) :: region
        integer(c_int64_t), intent(in) :: offset
        type(c_ptr) :: address
        integer(c_int64_t) :: size
        integer(c_intptr_t) :: number

        address = tameike_dsm_address(region)
        size = tameike_dsm_size(region)
        if (.not. c_associated(address)) return
        if (offset < 0 .or. offset >= size) then
            address = c_null_ptr
            return
        end if
        number = transfer(address, number) + int(offset, c_intptr_t)
        address = transfer(number, address)
    end function

    !> Describes a negative result.
    function tameike_dsm_message(status) result(message)
        integer(c_int), intent(in) :: status
        character(:), allocatable :: message
        character(kind=c_char), pointer :: text(:)
        type(c_ptr) :: found
        integer :: at

        found = strerror(-status)
        call c_f_pointer(found, text, [strlen(found)])
        allocate (character(size(text)) :: message)
        do at = 1, size(text)
            message(at:at) = text(at)
        end do
    end function
end module
