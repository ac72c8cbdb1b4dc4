/* The measuring client: librdkafka with nothing on top, and a bare socket.
 *
 * It owns the stopwatch and prints one line of JSON a run; which broker it speaks to and what the
 * figures mean is known to the Python side only. It is in C so that the broker is measured and not
 * a language's binding. It links the librdkafka that the confluent-kafka package brings.
 *
 * client produce   HOST:PORT TOPIC COUNT SIZE PARTITIONS   librdkafka's default batching
 * client consume   HOST:PORT TOPIC COUNT SIZE   from the beginning of every partition
 * client one       HOST:PORT TOPIC COUNT SIZE   one acknowledged record at a time
 * client paced     HOST:PORT TOPIC COUNT SIZE PAUSE_US   one record each so many microseconds, as
 *                  often as it reads a line; it is connected when it has printed one
 * client flow      HOST:PORT TOPIC BEGIN_MS LAST_MS SIZE RATE ID   from a time of the monotonic clock
 *                  on for so long: RATE bytes a second, 0 for as many as it can, or -1 for as many
 *                  as it can with a request for each record; ID is the client-id
 * client first     -         TOPIC               HOST:PORT on standard input; one record, then exit
 * client metadata  HOST:PORT -     COUNT         all topics, one request at a time, bare socket
 */

#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bare_socket.h"
#include "librdkafka.h"
#include "stopwatch.h"

static long acknowledged, refused;
static int last_error;

static void delivered(rd_kafka_t *client, const rd_kafka_message_t *message, void *opaque) {
    (void)client;
    (void)opaque;
    if (message->err) {
        refused++;
        last_error = message->err;
    } else {
        acknowledged++;
    }
}

static rd_kafka_t *open_client(int type, const char *servers, const char *linger_ms) {
    char error[256];
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    set(conf, "bootstrap.servers", servers);
    set(conf, "log_level", "2");
    if (type == PRODUCER) {
        rd_kafka_conf_set_dr_msg_cb(conf, delivered);
        if (linger_ms != NULL)
            set(conf, "linger.ms", linger_ms);
    } else {
        set(conf, "group.id", "benchmark");
        set(conf, "enable.auto.commit", "false");
    }
    rd_kafka_t *client = rd_kafka_new(type, conf, error, sizeof error);
    if (client == NULL)
        die(error);
    return client;
}

static void check_all_acknowledged(long wanted) {
    if (refused != 0 || acknowledged != wanted) {
        fprintf(stderr, "%ld of %ld acknowledged, %ld refused: %s\n", acknowledged, wanted,
                refused, rd_kafka_err2str(last_error));
        exit(1);
    }
}

/* The client's own processor time says whether it, or the broker, was what took long. */
static void print_throughput(double seconds, long bytes) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    double cpu = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
                 (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
    printf("{\"seconds\": %.6f, \"bytes\": %ld, \"client_cpu_seconds\": %.6f}\n", seconds, bytes, cpu);
}

/* librdkafka's own partitioner stays with one partition for 10 ms and goes on to a random one, so
 * that partitions end up unequal, and so would the runs that consume them. Here each gets as many
 * records at a stretch as it would get in that time, in turn. */
enum { STRETCH = 5000 };

static void produce(const char *servers, const char *topic, long count, size_t size,
                    int partitions) {
    rd_kafka_t *client = open_client(PRODUCER, servers, NULL);
    rd_kafka_topic_t *to = rd_kafka_topic_new(client, topic, NULL);
    char *payload = filler(size);
    /* Connecting and learning the leaders is not what is measured. */
    rd_kafka_produce(to, 0, FLAG_COPY, payload, size, NULL, 0, NULL);
    rd_kafka_flush(client, 30000);
    check_all_acknowledged(1);
    double began = now();
    for (long i = 0; i < count; i++) {
        int32_t partition = (int32_t)(i / STRETCH % partitions);
        while (rd_kafka_produce(to, partition, FLAG_COPY, payload, size, NULL, 0, NULL) != 0)
            rd_kafka_poll(client, 5); /* its queue is full */
        if (i % 256 == 0)
            rd_kafka_poll(client, 0);
    }
    rd_kafka_flush(client, 60000);
    double took = now() - began;
    check_all_acknowledged(count + 1);
    print_throughput(took, count * (long)size);
}

static void consume(const char *servers, const char *topic, long count, size_t size) {
    rd_kafka_t *client = open_client(CONSUMER, servers, NULL);
    rd_kafka_topic_t *from = rd_kafka_topic_new(client, topic, NULL);
    const rd_kafka_metadata_t *found;
    if (rd_kafka_metadata(client, 0, from, &found, 30000) != 0 || found->topic_cnt != 1)
        die("the topic was not found");
    int partitions = found->topics[0].partition_cnt;
    rd_kafka_metadata_destroy(found);
    rd_kafka_topic_partition_list_t *all = rd_kafka_topic_partition_list_new(partitions);
    for (int i = 0; i < partitions; i++)
        rd_kafka_topic_partition_list_add(all, topic, i)->offset = FROM_BEGINNING;
    rd_kafka_poll_set_consumer(client);
    rd_kafka_queue_t *queue = rd_kafka_queue_get_consumer(client);
    static rd_kafka_message_t *batch[10000];
    long seen = 0, bytes = 0;
    double began = now(), last = began;
    rd_kafka_assign(client, all);
    while (seen < count) {
        ssize_t got = rd_kafka_consume_batch_queue(queue, 100, batch, 10000);
        for (ssize_t i = 0; i < got; i++) {
            if (batch[i]->err != 0 && batch[i]->err != PARTITION_EOF)
                die(rd_kafka_err2str(batch[i]->err));
            if (batch[i]->err == 0) {
                seen++;
                bytes += (long)batch[i]->len;
            }
            rd_kafka_message_destroy(batch[i]);
        }
        if (got > 0)
            last = now();
        else if (now() - last > 20)
            die("nothing more comes");
    }
    print_throughput(now() - began, bytes);
    (void)size;
}

static void wait_acknowledged(rd_kafka_t *client, long wanted) {
    double began = now();
    while (acknowledged + refused < wanted) {
        rd_kafka_poll(client, 1000);
        if (now() - began > 30)
            die("no acknowledgement");
    }
    check_all_acknowledged(wanted);
}

static void one_at_a_time(const char *servers, const char *topic, long count, size_t size) {
    rd_kafka_t *client = open_client(PRODUCER, servers, "0");
    rd_kafka_topic_t *to = rd_kafka_topic_new(client, topic, NULL);
    char *payload = filler(size);
    double *times = calloc((size_t)count, sizeof *times);
    long warm_up = count / 5 + 1;
    for (long i = 0; i < warm_up + count; i++) {
        double began = now();
        rd_kafka_produce(to, 0, FLAG_COPY, payload, size, NULL, 0, NULL);
        wait_acknowledged(client, i + 1);
        if (i >= warm_up)
            times[i - warm_up] = now() - began;
    }
    print_quantiles(times, count);
}

/* Each record has its time to leave, and its latency counts from then on: what waits because the
 * broker was slow with the one before has waited, too. */
static void paced(const char *servers, const char *topic, long count, size_t size, long pause_us) {
    rd_kafka_t *client = open_client(PRODUCER, servers, "0");
    rd_kafka_topic_t *to = rd_kafka_topic_new(client, topic, NULL);
    char *payload = filler(size);
    double *times = calloc((size_t)count, sizeof *times);
    char line[8];
    for (long sent = 0; sent < 500;) { /* the first are slow by themselves */
        rd_kafka_produce(to, 0, FLAG_COPY, payload, size, NULL, 0, NULL);
        wait_acknowledged(client, ++sent);
    }
    printf("{\"ready\": 1}\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin) != NULL) {
        long before = acknowledged;
        double start = now();
        for (long i = 0; i < count; i++) {
            double from = start + (double)i * (double)pause_us / 1e6, left = from - now();
            if (left > 0) { /* what follows an answer that came late counts from when it was due */
                usleep((useconds_t)(left * 1e6));
                from = now(); /* how late one wakes is up to the machine */
            }
            rd_kafka_produce(to, 0, FLAG_COPY, payload, size, NULL, 0, NULL);
            wait_acknowledged(client, before + i + 1);
            times[i] = now() - from;
        }
        print_quantiles(times, count);
        fflush(stdout);
    }
}

/* Bytes that were acknowledged in each tenth of a second. */
enum { SLICES_A_SECOND = 10, SLICES_MAX = 1200 };
static long slices[SLICES_MAX];
static double flow_began;

static void counted(rd_kafka_t *client, const rd_kafka_message_t *message, void *opaque) {
    (void)client;
    (void)opaque;
    long slice = (long)((now() - flow_began) * SLICES_A_SECOND);
    if (message->err)
        die(rd_kafka_err2str(message->err));
    if (slice >= 0 && slice < SLICES_MAX)
        slices[slice] += (long)message->len;
}

static void set_number(rd_kafka_conf_t *conf, const char *name, long value) {
    char text[24];
    snprintf(text, sizeof text, "%ld", value);
    set(conf, name, text);
}

/* What is left in its queue at the end is not sent. A client that is held can send less than it
 * has, so its queue is short: filling a long one would take processor time from others. */
static void flow(const char *servers, const char *topic, char **rest) {
    long begin_ms = atol(rest[0]), last_ms = atol(rest[1]), rate = atol(rest[3]);
    size_t size = (size_t)atol(rest[2]);
    char error[256], *payload = filler(size);
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    set(conf, "bootstrap.servers", servers);
    set(conf, "client.id", rest[4]);
    set(conf, "log_level", "2");
    set_number(conf, "queue.buffering.max.messages", rate < 0 ? 1000 : 20000);
    if (rate < 0) {
        set(conf, "linger.ms", "0");
        set(conf, "batch.num.messages", "1");
    }
    rd_kafka_conf_set_dr_msg_cb(conf, counted);
    rd_kafka_t *client = rd_kafka_new(PRODUCER, conf, error, sizeof error);
    if (client == NULL)
        die(error);
    rd_kafka_topic_t *to = rd_kafka_topic_new(client, topic, NULL);
    flow_began = (double)begin_ms / 1000;
    double left = flow_began - now();
    if (left > 0)
        usleep((useconds_t)(left * 1e6));
    double end = flow_began + (double)last_ms / 1000;
    long sent = 0;
    for (double at = now(); at < end; at = now()) {
        double due = rate > 0 ? (at - flow_began) * (double)rate / (double)size : 1e18;
        int full = 0, burst = 0;
        while ((double)sent < due && burst++ < 256 && !full) {
            full = rd_kafka_produce(to, 0, FLAG_COPY, payload, size, NULL, 0, NULL) != 0;
            sent += !full;
        }
        rd_kafka_poll(client, full || (double)sent >= due ? 1 : 0);
    }
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    printf("{\"cpu_seconds\": %.3f, \"slices\": [%ld",
           (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
               (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6,
           slices[0]);
    for (long i = 1; i < last_ms * SLICES_A_SECOND / 1000 && i < SLICES_MAX; i++)
        printf(", %ld", slices[i]);
    printf("]}\n");
}

static void first(const char *topic) {
    char servers[256];
    char payload[] = "first";
    if (fgets(servers, sizeof servers, stdin) == NULL)
        die("no servers");
    servers[strcspn(servers, "\n")] = 0;
    rd_kafka_t *client = open_client(PRODUCER, servers, "0");
    rd_kafka_topic_t *to = rd_kafka_topic_new(client, topic, NULL);
    rd_kafka_produce(to, 0, FLAG_COPY, payload, sizeof payload, NULL, 0, NULL);
    wait_acknowledged(client, 1);
    printf("{\"acknowledged\": 1}\n");
    fflush(stdout);
    _exit(0); /* closing down is not what is measured */
}

/* Sends one request and reads its answer away. */
static void exchange(int stream, const void *request, size_t size) {
    static char answer[1 << 20];
    uint32_t length;
    if (send(stream, request, size, 0) != (ssize_t)size)
        die("could not send");
    receive(stream, (char *)&length, 4);
    if (ntohl(length) > sizeof answer)
        die("the answer is too large");
    receive(stream, answer, ntohl(length));
}

static void metadata(const char *server, long count) {
    /* length, key 3, version 5, correlation 1, client id "b", all topics, no creation */
    static const unsigned char request[] = {0, 0, 0, 16, 0, 3, 0, 5, 0, 0, 0, 1, 0, 1, 'b',
                                            255, 255, 255, 255, 0};
    struct sockaddr_in address = address_of(server);
    int stream = connect_to(&address);
    double *times = calloc((size_t)count, sizeof *times);
    for (long i = -count / 5; i < count; i++) {
        double began = now();
        exchange(stream, request, sizeof request);
        if (i >= 0)
            times[i] = now() - began;
    }
    print_quantiles(times, count);
}

int main(int argc, char **argv) {
    if (argc < 4)
        die("see the head of client.c");
    const char *mode = argv[1], *servers = argv[2], *topic = argv[3];
    long count = argc > 4 ? atol(argv[4]) : 1;
    size_t size = argc > 5 ? (size_t)atol(argv[5]) : 1;
    if (strcmp(mode, "produce") == 0)
        produce(servers, topic, count, size, argc > 6 ? atoi(argv[6]) : 1);
    else if (strcmp(mode, "consume") == 0)
        consume(servers, topic, count, size);
    else if (strcmp(mode, "one") == 0)
        one_at_a_time(servers, topic, count, size);
    else if (strcmp(mode, "paced") == 0)
        paced(servers, topic, count, size, argc > 6 ? atol(argv[6]) : 1000);
    else if (strcmp(mode, "flow") == 0 && argc > 8)
        flow(servers, topic, argv + 4);
    else if (strcmp(mode, "first") == 0)
        first(topic);
    else if (strcmp(mode, "metadata") == 0)
        metadata(servers, count);
    else
        die("see the head of client.c");
    fflush(stdout);
    _exit(0); /* librdkafka takes its time to close */
}
