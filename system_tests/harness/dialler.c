/* Connects as fast as one process can, from many addresses of this machine's own.
 *
 * It owns sockets and what can be seen of them from the outside; what the broker is allowed to do
 * with them is known to its callers. One thread, many connections at a time: each is opened, asks
 * ApiVersions, waits for the answer, stays for a while and is closed. It prints one line of JSON.
 * A connection is taken for open from its answer until just before it is closed here, so what is
 * open at a time is never more than what the broker has, as long as the broker closes none that it
 * has answered.
 *
 * dialler HOST:PORT AT_ONCE ADDRESSES count N                     until N were answered
 * dialler HOST:PORT AT_ONCE ADDRESSES storm MS HOLD_MS PATIENCE_MS   for so long; ends with all closed
 */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#ifndef IP_BIND_ADDRESS_NO_PORT
#define IP_BIND_ADDRESS_NO_PORT 24
#endif

enum { AT_ONCE_MAX = 4096, ADDRESSES_MAX = 1 << 17, SPANS_MAX = 6000, SPAN_MS = 10, LOOK_MS = 1 };
enum { COUNT_S = 600 }; /* how long a count may take: far longer than it does */
enum state { FREE, CONNECTING, ASKED, SERVED };

struct connection {
    enum state state;
    int stream;
    int address;
    long got;
    long wanted;
    double since; /* when it was opened or, if served, answered */
    unsigned char length[4];
};

static const unsigned char REQUEST[] = {0, 0, 0, 11, 0, 18, 0, 0, 0, 0, 0, 1, 0, 1, 'd'};
static struct connection connections[AT_ONCE_MAX];
static struct sockaddr_in broker;
static int poller, at_once, addresses, turn;
static long dialled, served, hung_up, given_up, lost, refused;
static long open_now, open_most, open_of[ADDRESSES_MAX], open_of_most, spans[SPANS_MAX];
static double began, last_answer;
static volatile sig_atomic_t told_to_end;

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

static void die(const char *what) {
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static void end(int signal) {
    (void)signal;
    told_to_end = 1;
}

static void finish(struct connection *one) {
    if (one->state == SERVED) {
        open_now--;
        open_of[one->address]--;
    }
    close(one->stream);
    one->state = FREE;
}

static void ask(struct connection *one) {
    if (send(one->stream, REQUEST, sizeof REQUEST, MSG_NOSIGNAL) == (ssize_t)sizeof REQUEST) {
        one->state = ASKED;
        return;
    }
    hung_up++;
    finish(one);
}

static void dial(struct connection *one, double at) {
    int yes = 1;
    one->stream = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (one->stream < 0)
        die("no descriptor is left");
    one->address = turn = (turn + 1) % addresses;
    struct sockaddr_in from = {.sin_family = AF_INET};
    from.sin_addr.s_addr = htonl(0x7f000101u + (uint32_t)one->address); /* 127.0.1.1 and on */
    setsockopt(one->stream, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &yes, sizeof yes);
    setsockopt(one->stream, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    if (bind(one->stream, (struct sockaddr *)&from, sizeof from) != 0)
        die("this machine has not the addresses 127.0.1.1 and on");
    dialled++;
    one->since = at;
    one->got = 0;
    one->wanted = 4;
    one->state = CONNECTING;
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = one};
    if (connect(one->stream, (struct sockaddr *)&broker, sizeof broker) != 0) {
        if (errno != EINPROGRESS) {
            refused++;
            finish(one);
            return;
        }
        event.events |= EPOLLOUT;
    } else {
        ask(one);
    }
    if (one->state != FREE)
        epoll_ctl(poller, EPOLL_CTL_ADD, one->stream, &event);
}

static void answered(struct connection *one, double at) {
    long span = (long)((at - began) * 1000 / SPAN_MS);
    served++;
    last_answer = at;
    spans[span < SPANS_MAX ? span : SPANS_MAX - 1]++;
    one->state = SERVED;
    one->since = at;
    if (++open_now > open_most)
        open_most = open_now;
    if (++open_of[one->address] > open_of_most)
        open_of_most = open_of[one->address];
}

static void look(struct connection *one, double at) {
    static unsigned char bytes[65536];
    if (one->state == CONNECTING) {
        int error = 0;
        socklen_t size = sizeof error;
        getsockopt(one->stream, SOL_SOCKET, SO_ERROR, &error, &size);
        if (error != 0) {
            refused++;
            finish(one);
            return;
        }
        struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = one};
        epoll_ctl(poller, EPOLL_CTL_MOD, one->stream, &event);
        ask(one);
        return;
    }
    ssize_t got = recv(one->stream, bytes, sizeof bytes, 0);
    if (got < 0 && errno == EAGAIN)
        return;
    if (got <= 0) {
        if (one->state == SERVED || one->got > 0)
            lost++;
        else
            hung_up++;
        finish(one);
        return;
    }
    for (ssize_t i = 0; i < got && one->got + i < 4; i++)
        one->length[one->got + i] = bytes[i];
    one->got += got;
    if (one->got >= 4)
        one->wanted = 4 + ((long)one->length[0] << 24 | one->length[1] << 16 |
                           one->length[2] << 8 | one->length[3]);
    if (one->state == ASKED && one->got >= one->wanted)
        answered(one, at);
}

/* All whose time is up are closed, and, unless it is over, others dialled for them. */
static void turn_over(double at, double hold, double patience, int over) {
    for (int i = 0; i < at_once; i++) {
        struct connection *one = &connections[i];
        if (one->state == SERVED && (over || at - one->since >= hold)) {
            finish(one);
        } else if ((one->state == ASKED || one->state == CONNECTING) &&
                   (over || at - one->since >= patience)) {
            given_up++;
            finish(one);
        }
        if (one->state == FREE && !over)
            dial(one, at);
    }
}

static void poll_once(int wait_ms, double hold, int again) {
    static struct epoll_event events[512];
    int count = epoll_wait(poller, events, 512, wait_ms);
    double at = now();
    for (int i = 0; i < count; i++) {
        struct connection *one = events[i].data.ptr;
        if (one->state == FREE)
            continue;
        look(one, at);
        if (one->state == SERVED && hold <= 0)
            finish(one);
        if (one->state == FREE && again)
            dial(one, at);
    }
}

static void run(long count, double seconds, double hold, double patience) {
    double looked = 0;
    began = last_answer = now();
    while (!told_to_end && served < count && now() - began < seconds) {
        double at = now();
        if ((at - looked) * 1000 >= LOOK_MS) {
            looked = at;
            turn_over(at, hold, patience, 0);
        }
        poll_once(LOOK_MS, hold, 1);
    }
    turn_over(now(), 0, 0, 1);
}

int main(int argc, char **argv) {
    signal(SIGTERM, end);
    if (argc < 6)
        die("see the head of dialler.c");
    char host[128];
    const char *colon = strrchr(argv[1], ':');
    snprintf(host, sizeof host, "%.*s", (int)(colon - argv[1]), argv[1]);
    broker.sin_family = AF_INET;
    broker.sin_port = htons((uint16_t)atoi(colon + 1));
    if (inet_pton(AF_INET, host, &broker.sin_addr) != 1)
        die("the address must be a numeric one");
    at_once = atoi(argv[2]);
    addresses = atoi(argv[3]);
    if (at_once < 1 || at_once > AT_ONCE_MAX || addresses < 1 || addresses > ADDRESSES_MAX)
        die("too many, or none, at once or addresses");
    poller = epoll_create1(EPOLL_CLOEXEC);
    double ended;
    if (strcmp(argv[4], "count") == 0) {
        run(atol(argv[5]), COUNT_S, 0, COUNT_S);
        ended = last_answer;
        if (served < atol(argv[5]) && !told_to_end)
            die("not all were answered in time");
    } else if (strcmp(argv[4], "storm") == 0 && argc == 8) {
        run(INT64_MAX, atof(argv[5]) / 1000, atof(argv[6]) / 1000, atof(argv[7]) / 1000);
        ended = now();
    } else {
        die("see the head of dialler.c");
        return 1;
    }
    printf("{\"seconds\": %.6f, \"dialled\": %ld, \"served\": %ld, \"hung_up\": %ld, "
           "\"given_up\": %ld, \"lost\": %ld, \"refused\": %ld, \"open_most\": %ld, "
           "\"open_most_of_address\": %ld, \"span_ms\": %d, \"spans\": [",
           ended - began, dialled, served, hung_up, given_up, lost, refused, open_most,
           open_of_most, SPAN_MS);
    long last = (long)((ended - began) * 1000 / SPAN_MS);
    for (long i = 0; i <= last && i < SPANS_MAX; i++)
        printf("%s%ld", i ? ", " : "", spans[i]);
    printf("]}\n");
    return 0;
}
