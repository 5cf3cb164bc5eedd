! A window in Fortran: `windows PATH RANK RANKS NEAR`, between ranks of which NEAR are on this node. Stops with a number if something is not
! as expected.
program windows
    use, intrinsic :: iso_c_binding
    use tameike_win
    implicit none

    integer(c_int64_t), parameter :: word = 8, rows = 100, columns = 30, head = 4096
    integer(c_int), parameter :: patience = 60000
    character(4096) :: path
    integer(c_int) :: rank, ranks, near, other
    integer(c_int64_t) :: part
    type(c_ptr) :: win

    call get_command_argument(1, path)
    rank = argument(2)
    ranks = argument(3)
    near = argument(4)
    part = word * rows * columns
    if (rank == 0) call check_errors()
    call expect(tameike_win_create(path, head + ranks * part, rank, ranks, 0_c_int, win), 0)
    if (tameike_win_size(win) /= head + ranks * part) stop 100
    if (tameike_win_rank(win) /= rank) stop 101
    if (tameike_win_ranks(win) /= ranks) stop 102
    do other = 0, ranks - 1
        if (c_associated(tameike_win_address(win, other))) near = near - 1
    end do
    if (near /= 0) stop 103
    if (c_associated(tameike_win_at(win, rank, head + ranks * part))) stop 104
    if (c_associated(tameike_win_at(win, rank, -1_c_int64_t))) stop 105
    call move_tables()
    call signal_each_other()
    call change_words()
    call send_messages()
    call expect(tameike_win_free(win), 0)

contains

    ! What cannot be created or accessed, alone.
    subroutine check_errors()
        integer(c_int64_t), target :: number

        number = 7
        call expect(tameike_win_create(trim(path) // "-alone", 0_c_int64_t, 0_c_int, 1_c_int, 0_c_int, win), -22)
        if (c_associated(win)) stop 110
        if (tameike_win_message(-22_c_int) /= "Invalid argument") stop 111
        call expect(tameike_win_create(trim(path) // "-alone", 4096_c_int64_t, 0_c_int, 1_c_int, 0_c_int, win), 0)
        call expect(tameike_win_put(win, 0_c_int, 4089_c_int64_t, c_loc(number), word), -22)
        call expect(tameike_win_put(win, 1_c_int, 0_c_int64_t, c_loc(number), word), -22)
        call expect(tameike_win_detach(win), 0)
        call expect(tameike_win_create(trim(path) // "-alone", 4096_c_int64_t, 0_c_int, 1_c_int, 0_c_int, win), 0)
        call expect(tameike_win_free(win), 0)
    end subroutine

    ! The table of a writer.
    pure function table_of(writer) result(table)
        integer(c_int), intent(in) :: writer
        integer(c_int64_t) :: table(rows, columns), row, column

        do column = 1, columns
            do row = 1, rows
                table(row, column) = 1000000_c_int64_t * writer + 1000 * row + column
            end do
        end do
    end function

    ! Each rank puts its table, and then a row of another one, to all.
    subroutine move_tables()
        integer(c_int64_t), target :: table(rows, columns), found(rows, columns), expected(rows, columns), row(columns)
        integer(c_int64_t), pointer :: own(:, :, :)

        call c_f_pointer(tameike_win_at(win, rank, head), own, [rows, columns, int(ranks, c_int64_t)])
        if (any(own /= 0)) stop 120
        call expect(tameike_win_barrier(win), 0)
        do other = 0, ranks - 1
            table = table_of(rank)
            call expect(tameike_win_put(win, other, head + part * rank, c_loc(table), part), 0)
            call expect(tameike_win_fence(win), 0)
            table = -table
            ! A row has elements at a distance of a column.
            call expect(tameike_win_iput(win, other, head + part * rank + 4 * word, rows, c_loc(table(7, 1)), rows, &
                word, columns), 0)
        end do
        call expect(tameike_win_quiet(win), 0)
        call expect(tameike_win_barrier(win), 0)
        do other = 0, ranks - 1
            expected = table_of(other)
            expected(5, :) = -expected(7, :)
            if (any(own(:, :, other + 1) /= expected)) stop 121
            call expect(tameike_win_get(win, modulo(rank + 1, ranks), head + part * other, c_loc(found), part), 0)
            if (any(found /= expected)) stop 122
            call expect(tameike_win_iget(win, modulo(rank + 1, ranks), head + part * other + 4 * word, rows, c_loc(row), &
                1_c_int64_t, word, columns), 0)
            if (any(row /= expected(5, :))) stop 123
        end do
        call expect(tameike_win_barrier(win), 0)
    end subroutine

    ! A rank that sees a signal sees the number before it.
    subroutine signal_each_other()
        integer(c_int64_t), target :: number
        integer(c_int64_t), pointer :: numbers(:)

        call expect(tameike_win_test(win, 80_c_int64_t, TAMEIKE_WIN_NE, 0_c_int64_t), 0)
        call expect(tameike_win_test(win, 80_c_int64_t, TAMEIKE_WIN_LT, -1_c_int64_t), 1)
        call expect(tameike_win_wait_until(win, 80_c_int64_t, TAMEIKE_WIN_GT, 0_c_int64_t, 10_c_int), int(TAMEIKE_WIN_EAGAIN))
        call expect(tameike_win_barrier(win), 0)
        number = rank + 1
        do other = 0, ranks - 1
            call expect(tameike_win_put_signal(win, other, 128 + word * rank, c_loc(number), word, 88_c_int64_t, 1_c_int64_t, &
                TAMEIKE_WIN_ADD), 0)
        end do
        call expect(tameike_win_wait_until(win, 88_c_int64_t, TAMEIKE_WIN_EQ, int(ranks, c_int64_t), patience), 0)
        call c_f_pointer(tameike_win_at(win, rank, 128_c_int64_t), numbers, [ranks])
        do other = 1, ranks
            if (numbers(other) /= other) stop 130
        end do
        call expect(tameike_win_put_signal(win, modulo(rank + 1, ranks), 0_c_int64_t, c_null_ptr, 0_c_int64_t, 96_c_int64_t, &
            -1_c_int64_t, TAMEIKE_WIN_SET), 0)
        call expect(tameike_win_wait_until(win, 96_c_int64_t, TAMEIKE_WIN_GE, -1_c_int64_t, patience), 0)
        call expect(tameike_win_barrier(win), 0)
    end subroutine

    ! Sums and a chain of swaps in words of rank 0.
    subroutine change_words()
        integer(c_int64_t) :: previous, expected, last
        integer :: turn

        last = rank + 1
        do turn = 1, 100
            call expect(tameike_win_fetch_add(win, 0_c_int, 0_c_int64_t, 3_c_int64_t, previous), 0)
            if (modulo(previous, 3_c_int64_t) /= 0) stop 140
            call expect(tameike_win_fetch(win, 0_c_int, 8_c_int64_t, previous), 0)
            do
                expected = previous
                call expect(tameike_win_compare_swap(win, 0_c_int, 8_c_int64_t, expected, expected + 1, previous), 0)
                if (previous == expected) exit
            end do
            call expect(tameike_win_swap(win, 0_c_int, 16_c_int64_t, last, previous), 0)
            last = previous
        end do
        ! Each value is with one rank, or in the word.
        call expect(tameike_win_fetch_add(win, 0_c_int, 24_c_int64_t, last, previous), 0)
        call expect(tameike_win_barrier(win), 0)
        call expect(tameike_win_fetch(win, 0_c_int, 0_c_int64_t, previous), 0)
        if (previous /= 300 * ranks) stop 141
        call expect(tameike_win_fetch(win, 0_c_int, 8_c_int64_t, previous), 0)
        if (previous /= 100 * ranks) stop 142
        call expect(tameike_win_fetch(win, 0_c_int, 16_c_int64_t, last), 0)
        call expect(tameike_win_fetch(win, 0_c_int, 24_c_int64_t, previous), 0)
        if (previous + last /= ranks * (ranks + 1) / 2) stop 143
        call expect(tameike_win_barrier(win), 0)
    end subroutine

    ! Each rank sends its number to all.
    subroutine send_messages()
        integer(c_int64_t), parameter :: queue = 1024, slots = 16
        integer(c_int64_t), target :: message(2)
        integer(c_int64_t) :: seen, size

        if (queue + tameike_win_queue_size(slots, 2 * word) > head) stop 150
        call expect(tameike_win_queue_init(win, queue, slots, 2 * word), 0)
        call expect(tameike_win_barrier(win), 0)
        do other = 0, ranks - 1
            message = [int(rank, c_int64_t), 7_c_int64_t]
            call expect(tameike_win_send(win, other, queue, c_loc(message), 3 * word, patience), int(TAMEIKE_WIN_EMSGSIZE))
            call expect(tameike_win_send(win, other, queue, c_loc(message), 2 * word, patience), 0)
        end do
        seen = 0
        do other = 0, ranks - 1
            size = tameike_win_receive(win, queue, c_loc(message), 2 * word, patience)
            if (size /= 2 * word) stop 151
            if (message(2) /= 7) stop 152
            seen = ibset(seen, message(1))
        end do
        if (seen /= 2_c_int64_t**ranks - 1) stop 153
        size = tameike_win_receive(win, queue, c_loc(message), 2 * word, 0_c_int)
        if (size /= TAMEIKE_WIN_EAGAIN) stop 154
        call expect(tameike_win_barrier(win), 0)
    end subroutine

    function argument(position) result(number)
        integer, intent(in) :: position
        integer(c_int) :: number
        character(20) :: text

        call get_command_argument(position, text)
        read (text, *) number
    end function

    subroutine expect(status, expected)
        integer(c_int), intent(in) :: status
        integer, intent(in) :: expected

        if (status == expected) return
        print *, "status ", status, ", not ", expected
        stop 1
    end subroutine
end program
