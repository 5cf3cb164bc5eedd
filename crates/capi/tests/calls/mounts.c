/* A view that becomes read-only while a program runs: `mounts VIEW`. Restores the mount. */
#include "tameike.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

static int fail(const char *what, int result) {
    printf("not so: %s: %d\n", what, result);
    return 1;
}

static int remount(const char *view, const char *how) {
    char command[4096];
    snprintf(command, sizeof command, "mount -o remount,bind,%s %s", how, view);
    return system(command);
}

int main(int count, char **arguments) {
    tameike_file *file;
    char path[4096], other[4096], bytes[4];
    int result;
    if (count != 2) return 2;
    snprintf(path, sizeof path, "%s/file", arguments[1]);
    snprintf(other, sizeof other, "%s/other", arguments[1]);
    if ((result = tameike_open(path, O_CREAT | O_WRONLY, 0600, &file)) != 0) return fail("it is made", result);
    if ((result = tameike_write(file, "some", 4, 0)) != 4) return fail("it is written", result);
    if ((result = tameike_close(file)) != 0) return fail("it is closed", result);
    if ((result = remount(arguments[1], "ro")) != 0) return fail("remount", result);
    if ((result = tameike_open(path, O_RDWR, 0, &file)) != -EROFS) return fail("no open for writing", result);
    if ((result = tameike_open(other, O_CREAT | O_WRONLY, 0600, &file)) != -EROFS) return fail("no new file", result);
    if ((result = tameike_mkdir(other, 0700)) != -EROFS) return fail("no new directory", result);
    if ((result = tameike_rename(path, other, 0)) != -EROFS) return fail("no new name", result);
    if ((result = tameike_unlink(path)) != -EROFS) return fail("no name less", result);
    if ((result = tameike_open(path, O_RDONLY, 0, &file)) != 0) return fail("it is opened", result);
    if ((result = tameike_read(file, bytes, 4, 0)) != 4) return fail("it is read", result);
    if ((result = tameike_close(file)) != 0) return fail("it is closed again", result);
    return remount(arguments[1], "rw");
}
