/* Ring files in a child (`endings child`), and after the agent has stopped (`endings agent`), which a line on standard input announces. */
#define _GNU_SOURCE
#include "tameike.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int fail(const char *what) {
    printf("not so: %s\n", what);
    return 1;
}

static int child(tameike_file *file, tameike_request *request) {
    char bytes[4];
    tameike_file *own;
    if (tameike_read(file, bytes, 4, 0) != -EIO) return fail("a file of the parent fails");
    if (tameike_wait(request, 0) != -EIO) return fail("a request of the parent fails");
    if (tameike_close(file) != -EIO) return fail("closing it, too");
    if (tameike_open("file", O_RDONLY, 0, &own) != 0) return fail("the child opens it");
    if (tameike_read(own, bytes, 4, 0) != 4 || memcmp(bytes, "some", 4) != 0) return fail("and reads it");
    return tameike_close(own) == 0 ? 0 : fail("and closes it");
}

int main(int count, char **arguments) {
    tameike_file *file;
    tameike_request *request;
    char bytes[4];
    tameike_piece piece = {0, bytes, 4};
    if (count != 2 || tameike_open("file", O_RDWR | O_CREAT, 0600, &file) != 0) return fail("it is made");
    if (tameike_write(file, "some", 4, 0) != 4) return fail("it is written");
    if (tameike_submit_read(file, &piece, 1, &request) != 0) return fail("submitted");
    if (strcmp(arguments[1], "child") == 0) {
        pid_t made = fork();
        if (made == 0) {
            int code = child(file, request);
            fflush(stdout);
            _exit(code);
        }
        int status;
        if (waitpid(made, &status, 0) != made || status != 0) return fail("the child is content");
        if (tameike_wait(request, -1) != 4 || memcmp(bytes, "some", 4) != 0) return fail("the parent goes on");
        return tameike_close(file) == 0 ? 0 : fail("the parent closes it");
    }
    if (tameike_wait(request, -1) != 4) return fail("read");
    puts("ready");
    fflush(stdout);
    if (getchar() == EOF) return fail("a byte says that the agent has gone");
    if (tameike_read(file, bytes, 4, 0) != -EIO) return fail("reading fails");
    if (tameike_submit_read(file, &piece, 1, &request) != 0) return fail("submitted");
    if (tameike_wait(request, -1) != -EIO) return fail("a request fails");
    if (tameike_close(file) != -EIO) return fail("closing fails");
    return 0;
}
