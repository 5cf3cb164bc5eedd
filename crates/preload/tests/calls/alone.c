/* A program whose agent stops after its first output. */
#include "show.h"

int main(void)
{
    char text[8];
    limit();
    /* The test expects certain descriptor numbers, which inherited descriptors must not occupy. */
    for (int inherited = 3; inherited < 100; inherited++)
        close(inherited);
    int fd = SHOW(open("file", O_RDWR | O_CREAT, 0600));
    SHOW(write(fd, "abc", 3));
    getchar();
    SHOW(pread(fd, text, 3, 0));
    SHOW(pread(fd, text, 3, 0));
    SHOW((long)mmap(NULL, 3, PROT_READ, MAP_SHARED, fd, 0));
    SHOW(open("file", O_RDWR));
    SHOW(pread(fd + 1, text, 3, 0));
    SHOW(close(fd));
    SHOW(open("file", O_RDWR));
    pid_t child = fork();
    if (child == 0) {
        SHOW(open("of-child", O_RDWR | O_CREAT, 0600));
        _exit(0);
    }
    finish(child);
    return 0;
}
