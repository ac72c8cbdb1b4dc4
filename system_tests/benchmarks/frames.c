/* The measuring client of single requests: a bare socket, and requests that are ready to be sent.
 *
 * It owns the stopwatch, sends what it reads from standard input again and again, and prints one
 * line of JSON. It must never know what a request means: an answer counts if it is as long as the
 * first one, and how many had other bytes than the first is printed with the first and last answer.
 *
 * frames HOST:PORT COUNT CONNECTIONS   COUNT answers, after a fifth of that for warm-up, with one
 *                                      request in flight on each connection; standard input has the
 *                                      requests with their sizes; each connection starts at another
 *                                      one and goes on by as many as there are connections
 */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "bare_socket.h"
#include "stopwatch.h"

enum { ANSWER_MAX = 1 << 16, INPUT_MAX = 1 << 24, FRAMES_MAX = 1 << 14, EVENTS_MAX = 512, HEX_MAX = 4096 };

struct frame {
    const char *bytes;
    size_t size;
};

struct connection {
    int stream;
    int request; /* its place in frames */
    int step;
    double since;
    uint32_t got;
    char *answer; /* with its size */
};

static char input[INPUT_MAX];
static struct frame frames[FRAMES_MAX];
static int frames_count;
static char first[ANSWER_MAX];
static uint32_t answer_size;
static long different, answers;

static uint32_t size_of(const char *frame) {
    uint32_t size;
    memcpy(&size, frame, 4);
    return ntohl(size) + 4;
}

static void read_frames(void) {
    size_t length = fread(input, 1, sizeof input, stdin);
    for (size_t at = 0; at < length; at += frames[frames_count++].size) {
        if (frames_count == FRAMES_MAX || length - at < 4 || length - at < size_of(input + at))
            die("standard input has no whole frames, or too many");
        frames[frames_count] = (struct frame){input + at, size_of(input + at)};
    }
    if (frames_count == 0)
        die("standard input has no frames");
}

static void send_request(struct connection *to) {
    to->got = 0;
    to->since = now();
    const struct frame *request = &frames[to->request];
    to->request = (to->request + to->step) % frames_count;
    for (size_t sent = 0; sent < request->size;) {
        ssize_t more = send(to->stream, request->bytes + sent, request->size - sent, 0);
        if (more <= 0)
            die("could not send");
        sent += (size_t)more;
    }
}

/* Receives what is there, at most the rest of the answer; returns whether that is whole. */
static int receive_some(struct connection *from) {
    uint32_t wanted = from->got < 4 ? (answer_size ? answer_size : 4) : size_of(from->answer);
    if (wanted > ANSWER_MAX)
        die("the answer is too large");
    ssize_t got = recv(from->stream, from->answer + from->got, wanted - from->got, 0);
    if (got <= 0)
        die("the connection was closed");
    from->got += (uint32_t)got;
    return from->got >= 4 && from->got == size_of(from->answer);
}

static void check(const struct connection *from) {
    if (answers++ == 0) {
        answer_size = from->got;
        memcpy(first, from->answer, answer_size);
    } else if (from->got != answer_size) {
        die("an answer has another size than the first");
    } else if (memcmp(first, from->answer, answer_size) != 0) {
        different++;
    }
}

/* One request and its answer. */
static void ask(struct connection *connection) {
    send_request(connection);
    while (!receive_some(connection))
        ;
    check(connection);
}

static double alone(struct connection *connection, double *times, long count) {
    double began = now();
    for (long i = -(count / 5); i < count; i++) {
        if (i == 0)
            began = now();
        ask(connection);
        if (i >= 0)
            times[i] = now() - connection->since;
    }
    return now() - began;
}

static double together(struct connection *connections, int size, double *times, long count) {
    static struct epoll_event events[EVENTS_MAX];
    int poller = epoll_create1(0);
    for (int i = 0; i < size; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &connections[i]};
        epoll_ctl(poller, EPOLL_CTL_ADD, connections[i].stream, &event);
        send_request(&connections[i]);
    }
    double began = now();
    for (long seen = -(count / 5); seen < count;) {
        int ready = epoll_wait(poller, events, EVENTS_MAX, 20000);
        if (ready <= 0)
            die("no answer");
        for (int i = 0; i < ready && seen < count; i++) {
            struct connection *from = events[i].data.ptr;
            if (!receive_some(from))
                continue;
            if (seen >= 0)
                times[seen] = now() - from->since;
            check(from);
            if (++seen == 0)
                began = now();
            if (seen < count)
                send_request(from);
        }
    }
    return now() - began;
}

static void print_hex(const char *name, const char *bytes) {
    printf(", \"%s\": \"", name);
    for (uint32_t i = 4; i < answer_size && i < HEX_MAX; i++)
        printf("%02x", (unsigned char)bytes[i]);
    printf("\"");
}

int main(int argc, char **argv) {
    if (argc < 4 || atol(argv[2]) < 1 || atoi(argv[3]) < 1)
        die("see the head of frames.c");
    long count = atol(argv[2]);
    int size = atoi(argv[3]);
    struct sockaddr_in address = address_of(argv[1]);
    struct connection *connections = calloc((size_t)size, sizeof *connections);
    double *times = calloc((size_t)count, sizeof *times);
    read_frames();
    for (int i = 0; i < size; i++) {
        connections[i].stream = connect_to(&address);
        connections[i].request = i % frames_count;
        connections[i].step = size;
        connections[i].answer = malloc(ANSWER_MAX);
        ask(&connections[i]); /* so it is accepted, and no queue of connections overflows */
    }
    double took = size == 1 ? alone(connections, times, count)
                            : together(connections, size, times, count);
    qsort(times, (size_t)count, sizeof *times, by_size);
    printf("{\"seconds\": %.6f, \"answers\": %ld, \"different\": %ld, \"median_us\": %.2f,"
           " \"p99_us\": %.2f",
           took, answers, different, times[count / 2] * 1e6, times[count * 99 / 100] * 1e6);
    print_hex("first", first);
    print_hex("last", connections[0].answer);
    printf("}\n");
    fflush(stdout);
    _exit(0);
}
