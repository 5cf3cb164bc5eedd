/* A program that changes its user after it has used the library: `users VIEW`. */
#include "tameike.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

static int fail(const char *what, int result) {
    printf("not so: %s: %d\n", what, result);
    return 1;
}

int main(int count, char **arguments) {
    tameike_file *file;
    char path[4096], other[4096];
    int result;
    if (count != 2) return 2;
    snprintf(path, sizeof path, "%s/secret", arguments[1]);
    snprintf(other, sizeof other, "%s/other", arguments[1]);
    if ((result = tameike_open(path, O_CREAT | O_WRONLY, 0600, &file)) != 0) return fail("it is made", result);
    if ((result = tameike_close(file)) != 0) return fail("it is closed", result);
    if (seteuid(65534) != 0) return fail("another user", errno);
    if ((result = tameike_open(path, O_RDONLY, 0, &file)) != -EACCES) return fail("no open", result);
    if ((result = tameike_open(other, O_CREAT | O_WRONLY, 0600, &file)) != -EACCES) return fail("no new file", result);
    if ((result = tameike_unlink(path)) != -EACCES) return fail("no name less", result);
    if (seteuid(0) != 0) return fail("the user from before", errno);
    if ((result = tameike_open(path, O_RDONLY, 0, &file)) != 0) return fail("it is opened", result);
    return tameike_close(file);
}
