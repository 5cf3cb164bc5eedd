!> Memory of each process that all others on the nodes of a job read and write: the functions tameike_win_*() of tameike.h for Fortran.
!>
!> Compile this file with the program, because the files of modules differ between compilers:
!>
!>     prefix=$(pkg-config --variable=includedir tameike)
!>     gfortran "$prefix/tameike_win.f90" program.f90 $(pkg-config --libs tameike)
!>
!> tameike.h describes each function. Here, names have trailing blanks removed; offsets, sizes, strides, counts and words are
!> integer(c_int64_t), and comparisons take words as numbers without a sign. A window is a type(c_ptr), and so is memory of the program,
!> which c_loc() gives. Ranks begin with 0. Functions return a negative number of errno.h if they fail, which tameike_win_message()
!> describes.
!>
!> A variable that c_loc() is applied to, or that other ranks change, has the attribute `target` or `pointer`: otherwise compilers assume
!> that a call does not change it.
module tameike_win
    use, intrinsic :: iso_c_binding, only: c_associated, c_char, c_f_pointer, c_int, c_int64_t, c_intptr_t, c_null_char, &
        c_null_ptr, c_ptr, c_size_t
    implicit none
    private

    public :: tameike_win_create, tameike_win_address, tameike_win_size, tameike_win_rank, tameike_win_ranks
    public :: tameike_win_put, tameike_win_get, tameike_win_iput, tameike_win_iget
    public :: tameike_win_put_signal, tameike_win_wait_until, tameike_win_test
    public :: tameike_win_fence, tameike_win_quiet, tameike_win_barrier
    public :: tameike_win_fetch_add, tameike_win_swap, tameike_win_compare_swap, tameike_win_fetch
    public :: tameike_win_queue_size, tameike_win_queue_init, tameike_win_send, tameike_win_receive
    public :: tameike_win_detach, tameike_win_free
    public :: tameike_win_at, tameike_win_message

    !> Comparisons: equal, not equal, greater, greater or equal, less, less or equal.
    integer(c_int), parameter, public :: TAMEIKE_WIN_EQ = 0, TAMEIKE_WIN_NE = 1, TAMEIKE_WIN_GT = 2
    integer(c_int), parameter, public :: TAMEIKE_WIN_GE = 3, TAMEIKE_WIN_LT = 4, TAMEIKE_WIN_LE = 5

    !> Operations of signals: store in the word, add to the word.
    integer(c_int), parameter, public :: TAMEIKE_WIN_SET = 0, TAMEIKE_WIN_ADD = 1

    !> Results after which a program may continue in another way. That of a wait after its time is TAMEIKE_WIN_EAGAIN.
    integer(c_int), parameter, public :: TAMEIKE_WIN_EAGAIN = -11, TAMEIKE_WIN_EPIPE = -32, TAMEIKE_WIN_EMSGSIZE = -90
    integer(c_int), parameter, public :: TAMEIKE_WIN_EHOSTDOWN = -112, TAMEIKE_WIN_EOWNERDEAD = -130

    interface
        function create_of_c(path, bytes, rank, ranks, flags, win) result(status) bind(c, name="tameike_win_create")
            import :: c_char, c_int, c_int64_t, c_ptr
            character(kind=c_char), intent(in) :: path(*)
            integer(c_int64_t), value :: bytes
            integer(c_int), value :: rank
            integer(c_int), value :: ranks
            integer(c_int), value :: flags
            type(c_ptr), intent(out) :: win
            integer(c_int) :: status
        end function

        !> Address of the memory of a rank, for c_f_pointer(); null for a process of another node.
        function tameike_win_address(win, rank) result(address) bind(c, name="tameike_win_address")
            import :: c_int, c_ptr
            type(c_ptr), value :: win
            integer(c_int), value :: rank
            type(c_ptr) :: address
        end function

        !> Size of the memory of each rank in bytes.
        function tameike_win_size(win) result(size) bind(c, name="tameike_win_size")
            import :: c_int64_t, c_ptr
            type(c_ptr), value :: win
            integer(c_int64_t) :: size
        end function

        !> The rank of this process.
        function tameike_win_rank(win) result(rank) bind(c, name="tameike_win_rank")
            import :: c_int, c_ptr
            type(c_ptr), value :: win
            integer(c_int) :: rank
        end function

        !> Number of ranks.
        function tameike_win_ranks(win) result(ranks) bind(c, name="tameike_win_ranks")
            import :: c_int, c_ptr
            type(c_ptr), value :: win
            integer(c_int) :: ranks
        end function

        !> Stores bytes in the memory of a rank. `memory` may change when it returns.
        function tameike_win_put(win, rank, offset, memory, size) result(status) bind(c, name="tameike_win_put")
            import :: c_int, c_int64_t, c_ptr
            type(c_ptr), value :: win
            integer(c_int), value :: rank
            integer(c_int64_t), value :: offset
            type(c_ptr), value :: memory
            integer(c_int64_t), value :: size
            integer(c_int) :: status
        end function

        !> Loads bytes from the memory of a rank.
        function tameike_win_get(win, rank, offset, memory, size) result(status) bind(c, name="tameike_win_get")
            import :: c_int, c_int64_t, c_ptr
            type(c_ptr), value :: win
            integer(c_int), value :: rank
            integer(c_int64_t), value :: offset
            type(c_ptr), value :: memory
            integer(c_int64_t), value :: size
            integer(c_int) :: status
        end function

        !> Stores elements: those of the rank are `stride` elements apart, and those at `memory` `memory_stride`.
        function tameike_win_iput(win, rank, offset, stride, memory, memory_stride, element_size, count) result(status) &
            bind(c, name="tameike_win_iput")
            import :: c_int, c_int64_t, c_ptr
            type(c_ptr), value :: win
            integer(c_int), value :: rank
            integer(c_int64_t), value :: offset
            integer(c_int64_t), value :: stride
            type(c_ptr), value :: memory
            integer(c_int64_t), value :: memory_stride
            integer(c_int64_t), value :: element_size
            integer(c_int64_t), value :: count
            integer(c_int) :: status
        end function

        !> Loads elements, with the arguments of tameike_win_iput().
        function tameike_win_iget(win, rank, offset, stride, memory, memory_stride, element_size, count) result(status) &
            bind(c, name="tameike_win_iget")
            import :: c_int, c_int64_t, c_ptr
            type(c_ptr), value :: win
            integer(c_int), value :: rank
            integer(c_int64_t), value :: offset
            integer(c_int64_t), value :: stride
            type(c_ptr), value :: memory
            integer(c_int64_t), value :: memory_stride
            integer(c_int64_t), value :: element_size
            integer(c_int64_t), value :: count
            integer(c_int) :: status
        end function

        !> Stores bytes, and then stores or adds `signal` in a word of the same rank.
        function tameike_win_put_signal(win, rank, offset, memory, size, signal_offset, signal, operation) result(status) &
            bind(c, name="tameike_win_put_signal")
            import :: c_int, c_int64_t, c_ptr
            type(c_ptr), value :: win
            integer(c_int), value :: rank
            integer(c_int64_t), value :: offset
            type(c_ptr), value :: memory
            integer(c_int64_t), value :: size
            integer(c_int64_t), value :: signal_offset
            integer(c_int64_t), value :: signal
            integer(c_int), value :: operation
            integer(c_int) :: status
        end function

        !> Waits until an own word compares to a value; with a negative time without limit.
        function tameike_win_wait_until(win, offset, comparison, value, milliseconds) result(status) &
            bind(c, name="tameike_win_wait_until")
            import :: c_int, c_int64_t, c_ptr
            type(c_ptr), value :: win
            integer(c_int64_t), value :: offset
            integer(c_int), value :: comparison
            integer(c_int64_t), value :: value
            integer(c_int), value :: milliseconds
            integer(c_int) :: status
        end function

        !> Returns 1 if an own word compares to a value, and 0 if not.
        function tameike_win_test(win, offset, comparison, value) result(status) bind(c, name="tameike_win_test")
            import :: c_int, c_int64_t, c_ptr
            type(c_ptr), value :: win
            integer(c_int64_t), value :: offset
            integer(c_int), value :: comparison
            integer(c_int64_t), value :: value
            integer(c_int) :: status
        end function

        !> Makes later stores in the memory of a rank visible after earlier ones.
        function tameike_win_fence(win) result(status) bind(c, name="tameike_win_fence")
            import :: c_int, c_ptr
            type(c_ptr), value :: win
            integer(c_int) :: status
        end function

        !> Waits until all stores of this process are visible to all.
        function tameike_win_quiet(win) result(status) bind(c, name="tameike_win_quiet")
            import :: c_int, c_ptr
            type(c_ptr), value :: win
            integer(c_int) :: status
        end function

        !> As tameike_win_quiet(), and waits for all ranks.
        function tameike_win_barrier(win) result(status) bind(c, name="tameike_win_barrier")
            import :: c_int, c_ptr
            type(c_ptr), value :: win
            integer(c_int) :: status
        end function

        !> Adds to a word of a rank, and returns the value before.
        function tameike_win_fetch_add(win, rank, offset, addend, previous) result(status) &
            bind(c, name="tameike_win_fetch_add")
            import :: c_int, c_int64_t, c_ptr
            type(c_ptr), value :: win
            integer(c_int), value :: rank
            integer(c_int64_t), value :: offset
            integer(c_int64_t), value :: addend
            integer(c_int64_t), intent(out) :: previous
            integer(c_int) :: status
        end function

        !> Stores a value in a word of a rank, and returns the value before.
        function tameike_win_swap(win, rank, offset, value, previous) result(status) bind(c, name="tameike_win_swap")
            import :: c_int, c_int64_t, c_ptr
            type(c_ptr), value :: win
            integer(c_int), value :: rank
            integer(c_int64_t), value :: offset
            integer(c_int64_t), value :: value
            integer(c_int64_t), intent(out) :: previous
            integer(c_int) :: status
        end function

        !> As tameike_win_swap(), if the word has the value `expected`.
        function tameike_win_compare_swap(win, rank, offset, expected, value, previous) result(status) &
            bind(c, name="tameike_win_compare_swap")
            import :: c_int, c_int64_t, c_ptr
            type(c_ptr), value :: win
            integer(c_int), value :: rank
            integer(c_int64_t), value :: offset
            integer(c_int64_t), value :: expected
            integer(c_int64_t), value :: value
            integer(c_int64_t), intent(out) :: previous
            integer(c_int) :: status
        end function

        !> Reads a word of a rank as a whole.
        function tameike_win_fetch(win, rank, offset, value) result(status) bind(c, name="tameike_win_fetch")
            import :: c_int, c_int64_t, c_ptr
            type(c_ptr), value :: win
            integer(c_int), value :: rank
            integer(c_int64_t), value :: offset
            integer(c_int64_t), intent(out) :: value
            integer(c_int) :: status
        end function

        !> Completes all stores, and detaches.
        function tameike_win_detach(win) result(status) bind(c, name="tameike_win_detach")
            import :: c_int, c_ptr
            type(c_ptr), value :: win
            integer(c_int) :: status
        end function

        !> As tameike_win_barrier() and then tameike_win_detach(), and removes the file; by all ranks together.
        function tameike_win_free(win) result(status) bind(c, name="tameike_win_free")
            import :: c_int, c_ptr
            type(c_ptr), value :: win
            integer(c_int) :: status
        end function

        !> Size of a message queue in bytes, or 0 if it is too large.
        function tameike_win_queue_size(slots, message_size) result(size) bind(c, name="tameike_win_queue_size")
            import :: c_int64_t
            integer(c_int64_t), value :: slots
            integer(c_int64_t), value :: message_size
            integer(c_int64_t) :: size
        end function

        !> Creates an empty message queue in the own memory.
        function tameike_win_queue_init(win, offset, slots, message_size) result(status) &
            bind(c, name="tameike_win_queue_init")
            import :: c_int, c_int64_t, c_ptr
            type(c_ptr), value :: win
            integer(c_int64_t), value :: offset
            integer(c_int64_t), value :: slots
            integer(c_int64_t), value :: message_size
            integer(c_int) :: status
        end function

        !> Appends a message to the queue of a rank, and waits while it is full.
        function tameike_win_send(win, rank, queue, message, size, milliseconds) result(status) &
            bind(c, name="tameike_win_send")
            import :: c_int, c_int64_t, c_ptr
            type(c_ptr), value :: win
            integer(c_int), value :: rank
            integer(c_int64_t), value :: queue
            type(c_ptr), value :: message
            integer(c_int64_t), value :: size
            integer(c_int), value :: milliseconds
            integer(c_int) :: status
        end function

        !> Takes the oldest message of an own queue, and waits while it is empty. Returns its size.
        function tameike_win_receive(win, queue, memory, capacity, milliseconds) result(size) &
            bind(c, name="tameike_win_receive")
            import :: c_int, c_int64_t, c_ptr
            type(c_ptr), value :: win
            integer(c_int64_t), value :: queue
            type(c_ptr), value :: memory
            integer(c_int64_t), value :: capacity
            integer(c_int), value :: milliseconds
            integer(c_int64_t) :: size
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

    !> Creates a window with memory of `bytes` bytes for each rank. All ranks call it together.
    function tameike_win_create(path, bytes, rank, ranks, flags, win) result(status)
        character(*), intent(in) :: path
        integer(c_int64_t), intent(in) :: bytes
        integer(c_int), intent(in) :: rank
        integer(c_int), intent(in) :: ranks
        integer(c_int), intent(in) :: flags
        type(c_ptr), intent(out) :: win
        integer(c_int) :: status

        win = c_null_ptr
        status = create_of_c(trim(path) // c_null_char, bytes, rank, ranks, flags, win)
    end function

    !> Address of the byte at an offset in the memory of a rank, for c_f_pointer(); null beyond the memory, for a process of another node,
    !> and in a child of fork().
    function tameike_win_at(win, rank, offset) result(address)
        type(c_ptr), intent(in) :: win
        integer(c_int), intent(in) :: rank
        integer(c_int64_t), intent(in) :: offset
        type(c_ptr) :: address
        integer(c_int64_t) :: size
        integer(c_intptr_t) :: number

        address = tameike_win_address(win, rank)
        size = tameike_win_size(win)
        if (.not. c_associated(address)) return
        if (offset < 0 .or. offset >= size) then
            address = c_null_ptr
            return
        end if
        number = transfer(address, number) + int(offset, c_intptr_t)
        address = transfer(number, address)
    end function

    !> Describes a negative result.
    function tameike_win_message(status) result(message)
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
