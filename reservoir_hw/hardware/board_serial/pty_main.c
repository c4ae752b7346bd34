/* The board as a process of a POSIX system, its line a pty: to try it, and for tests.
 *
 *     board_pty [--link PATH] [--log FILE]
 *
 * prints the path of its port. SIGINT and SIGTERM end it. */
#define _XOPEN_SOURCE 600

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "board.h"
#include "device.h"
#include "uart.h"

#define LOOK_MS 10
/* So long a host may leave an answer lie. */
#define PATIENCE_MS 500

static int line = -1;
static FILE *event_log;
static volatile sig_atomic_t is_ended;

static uint8_t come[4096], going[4096];
static size_t come_count, come_at, going_count;

static double seconds(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

uint32_t clock_ms(void)
{
    return (uint32_t)(uint64_t)(1000 * seconds(CLOCK_MONOTONIC));
}

int16_t uart_read(void)
{
    if (come_at == come_count) {
        ssize_t count = read(line, come, sizeof come);
        come_at = 0;
        come_count = count > 0 ? (size_t)count : 0;
    }
    return come_at < come_count ? come[come_at++] : -1;
}

/* What a host does not read is lost, as on a UART. */
static void write_out(void)
{
    static int is_full;
    size_t at = 0;
    while (at < going_count) {
        ssize_t count = write(line, going + at, going_count - at);
        struct pollfd room = {line, POLLOUT, 0};
        if (count > 0) {
            at += (size_t)count;
            is_full = 0;
        } else if (errno != EAGAIN || is_full || poll(&room, 1, PATIENCE_MS) <= 0) {
            is_full = 1;
            break;
        }
    }
    going_count = 0;
}

void uart_write(uint8_t byte)
{
    going[going_count++] = byte;
    if (!byte || going_count == sizeof going)
        write_out();
}

/* The lines of the log are those of `reservoir-hw emulate board --log`. */
void drive_enable(uint8_t level)
{
    static int before = -1;
    if (event_log && before != level) {
        fprintf(event_log, "{\"event\": \"%s\", \"channel\": 1, \"unix_s\": %.6f}\n", level ? "on" : "off",
                seconds(CLOCK_REALTIME));
        fflush(event_log);
    }
    before = level;
}

static void end(int number)
{
    (void)number;
    is_ended = 1;
}

static int failed(const char *what)
{
    fprintf(stderr, "board_pty: %s: %s\n", what, strerror(errno));
    return 1;
}

/* Opens the pty. The other side stays open, so that hosts can come and go. */
static const char *open_line(void)
{
    struct termios raw;
    const char *path;
    int other;
    line = posix_openpt(O_RDWR | O_NOCTTY);
    if (line < 0 || grantpt(line) || unlockpt(line) || !(path = ptsname(line)))
        return NULL;
    other = open(path, O_RDWR | O_NOCTTY);
    if (other < 0 || tcgetattr(other, &raw))
        return NULL;
    raw.c_iflag = raw.c_oflag = raw.c_lflag = 0;
    raw.c_cflag = CS8 | CREAD | CLOCAL;
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    if (tcsetattr(other, TCSANOW, &raw) || fcntl(line, F_SETFL, O_NONBLOCK))
        return NULL;
    return path;
}

int main(int count, char **arguments)
{
    const char *link = NULL, *path;
    struct sigaction action;
    for (int i = 1; i < count; i += 2) {
        const char *value = i + 1 < count ? arguments[i + 1] : NULL;
        if (value && !strcmp(arguments[i], "--link"))
            link = value;
        else if (value && !strcmp(arguments[i], "--log")) {
            event_log = fopen(value, "a");
            if (!event_log)
                return failed(value);
        } else {
            fprintf(stderr, "usage: board_pty [--link PATH] [--log FILE]\n");
            return 2;
        }
    }
    memset(&action, 0, sizeof action);
    action.sa_handler = end;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    path = open_line();
    if (!path)
        return failed("pty");
    if (link) {
        char before[4096];
        if (readlink(link, before, sizeof before) >= 0)
            unlink(link);
        if (symlink(path, link))
            return failed(link);
        path = link;
    }
    board_begin();
    printf("%s\n", path);
    fflush(stdout);
    while (!is_ended) {
        struct pollfd coming = {line, POLLIN, 0};
        if (come_at == come_count)
            poll(&coming, 1, LOOK_MS);
        board_poll();
    }
    device_safe();
    if (link)
        unlink(link);
    return 0;
}
