/* Descriptor numbers: the lowest free one, standard streams, and a program that closes all unknown descriptors. */
#include "show.h"
#include <linux/close_range.h>

int main(void)
{
    limit();
    int out = dup(1);
    SHOW(open("a", O_RDWR | O_CREAT, 0600));
    SHOW(open("b", O_RDWR | O_CREAT, 0600));
    SHOW(open("c", O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    SHOW(fcntl(6, F_GETFD));
    SHOW(close(5));
    SHOW(open("/dev/null", O_RDWR));
    SHOW(close(4));
    SHOW(open("a", O_RDWR));
    SHOW(close(0));
    SHOW(open("a", O_RDWR));
    SHOW(write(0, "zero", 4));
    struct stat st;
    SHOW(stat("/dev/stdin", &st));
    printf("size %ld\n", (long)st.st_size);
    for (int fd = 4; fd < 1024; fd++)
        close(fd);
    SHOW(open("a", O_RDWR));
    SHOW(open("d", O_RDWR | O_CREAT, 0600));
    SHOW(close_range(4, ~0U, CLOSE_RANGE_CLOEXEC));
    SHOW(fcntl(5, F_GETFD));
    SHOW(close_range(4, ~0U, 0));
    SHOW(write(4, "x", 1));
    SHOW(open("e", O_RDWR | O_CREAT, 0600));
    SHOW(write(4, "still", 5));
    closefrom(4);
    SHOW(write(4, "x", 1));
    SHOW(close_range(9, 4, 0));
    SHOW(open("e", O_RDWR));
    show_text(4);
    for (int fd = 1000; fd < 1024; fd++)
        if (dup2(out, fd) != fd)
            puts("dup2 failed");
    SHOW(write(4, "STILL", 5));
    SHOW(close(1010));
    SHOW(close(1010));
    SHOW(open("f", O_RDWR | O_CREAT, 0600));
    SHOW(write(5, "later", 5));
    return 0;
}
