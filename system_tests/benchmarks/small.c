/* The measuring client of small requests: librdkafka with a record each.
 *
 * It owns the stopwatch and prints one line of JSON a run; which broker it speaks to and what the
 * figures mean is known to the Python side only.
 *
 * small producers   HOST:PORT TOPIC PRODUCERS SIZE PARTITIONS MS   each waits for the acknowledgement
 *                   of one record before the next and stays with one partition; a run of MS
 *                   milliseconds starts when it reads a line; it is warm when it has printed one
 * small end-to-end  HOST:PORT TOPIC COUNT SIZE PAUSE_US   one record at a time, from the producer to
 *                   a consumer that waits for it, after a pause
 */

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "librdkafka.h"
#include "stopwatch.h"

enum { WARM_UP = 100, PATIENCE_S = 30 };

struct producer {
    rd_kafka_t *client;
    rd_kafka_topic_t *to;
    int32_t partition;
    char *payload;
    size_t size;
    long acknowledged; /* changed by its own thread, in a callback */
    long measured;
    pthread_t thread;
};

static pthread_barrier_t warm;
static atomic_int ended;

static void delivered(rd_kafka_t *client, const rd_kafka_message_t *message, void *opaque) {
    (void)client;
    if (message->err)
        die(rd_kafka_err2str(message->err));
    ((struct producer *)opaque)->acknowledged++;
}

static void open_producer(struct producer *producer, const char *servers, const char *topic,
                          size_t size) {
    char error[256];
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    set(conf, "bootstrap.servers", servers);
    set(conf, "log_level", "2");
    set(conf, "linger.ms", "0");
    rd_kafka_conf_set_opaque(conf, producer);
    rd_kafka_conf_set_dr_msg_cb(conf, delivered);
    producer->client = rd_kafka_new(PRODUCER, conf, error, sizeof error);
    if (producer->client == NULL)
        die(error);
    producer->to = rd_kafka_topic_new(producer->client, topic, NULL);
    producer->payload = filler(size);
    producer->size = size;
}

static void produce_one(struct producer *producer) {
    long wanted = producer->acknowledged + 1;
    if (rd_kafka_produce(producer->to, producer->partition, FLAG_COPY, producer->payload,
                         producer->size, NULL, 0, NULL) != 0)
        die("the producer's queue is full");
    double began = now();
    while (producer->acknowledged < wanted) {
        rd_kafka_poll(producer->client, 1000);
        if (now() - began > PATIENCE_S)
            die("no acknowledgement");
    }
}

static void *produce_until_end(void *argument) {
    struct producer *producer = argument;
    for (int i = 0; i < WARM_UP; i++)
        produce_one(producer);
    pthread_barrier_wait(&warm);
    pthread_barrier_wait(&warm);
    while (!atomic_load_explicit(&ended, memory_order_relaxed)) {
        produce_one(producer);
        producer->measured++;
    }
    return NULL;
}

/* A broker that makes topics by itself may give them fewer partitions. */
static int partitions_of(struct producer *producer, int wanted) {
    const rd_kafka_metadata_t *found;
    if (rd_kafka_metadata(producer->client, 0, producer->to, &found, PATIENCE_S * 1000) != 0 ||
        found->topic_cnt != 1)
        die("the topic was not found");
    int partitions = found->topics[0].partition_cnt;
    rd_kafka_metadata_destroy(found);
    return partitions > 0 && partitions < wanted ? partitions : wanted;
}

static void producers(const char *servers, const char *topic, int count, size_t size,
                      int partitions, long ms) {
    char line[8];
    struct producer *all = calloc((size_t)count, sizeof *all);
    pthread_barrier_init(&warm, NULL, (unsigned)count + 1);
    for (int i = 0; i < count; i++)
        open_producer(&all[i], servers, topic, size);
    partitions = partitions_of(&all[0], partitions);
    for (int i = 0; i < count; i++) {
        all[i].partition = i % partitions;
        if (pthread_create(&all[i].thread, NULL, produce_until_end, &all[i]) != 0)
            die("no thread");
    }
    pthread_barrier_wait(&warm);
    printf("{\"ready\": 1}\n");
    fflush(stdout);
    if (fgets(line, sizeof line, stdin) == NULL)
        die("no line to start with");
    double began = now();
    pthread_barrier_wait(&warm);
    usleep((useconds_t)(ms * 1000));
    atomic_store(&ended, 1);
    long requests = 0;
    for (int i = 0; i < count; i++) {
        pthread_join(all[i].thread, NULL);
        requests += all[i].measured;
    }
    printf("{\"requests\": %ld, \"seconds\": %.6f}\n", requests, now() - began);
}

static rd_kafka_t *open_consumer(const char *servers, const char *topic) {
    char error[256];
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    set(conf, "bootstrap.servers", servers);
    set(conf, "log_level", "2");
    set(conf, "group.id", "benchmark");
    set(conf, "enable.auto.commit", "false");
    rd_kafka_t *client = rd_kafka_new(CONSUMER, conf, error, sizeof error);
    if (client == NULL)
        die(error);
    rd_kafka_topic_partition_list_t *assigned = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_list_add(assigned, topic, 0)->offset = FROM_BEGINNING;
    rd_kafka_poll_set_consumer(client);
    rd_kafka_assign(client, assigned);
    return client;
}

static void consume_one(rd_kafka_t *consumer, size_t size) {
    double began = now();
    rd_kafka_message_t *message;
    while ((message = rd_kafka_consumer_poll(consumer, 1000)) == NULL)
        if (now() - began > PATIENCE_S)
            die("the record was not consumed");
    if (message->err)
        die(rd_kafka_err2str(message->err));
    if (message->len != size)
        die("another record was consumed");
    rd_kafka_message_destroy(message);
}

static void end_to_end(const char *servers, const char *topic, long count, size_t size,
                       long pause_us) {
    struct producer producer = {0};
    open_producer(&producer, servers, topic, size);
    rd_kafka_t *consumer = open_consumer(servers, topic);
    double *times = calloc((size_t)count, sizeof *times);
    long warm_up = count / 5 + 1;
    for (long i = 0; i < warm_up + count; i++) {
        usleep((useconds_t)pause_us); /* the consumer's next request has arrived */
        double began = now();
        rd_kafka_produce(producer.to, 0, FLAG_COPY, producer.payload, size, NULL, 0, NULL);
        consume_one(consumer, size);
        if (i >= warm_up)
            times[i - warm_up] = now() - began;
        rd_kafka_poll(producer.client, 0);
    }
    print_quantiles(times, count);
}

int main(int argc, char **argv) {
    if (argc < 7)
        die("see the head of small.c");
    const char *mode = argv[1], *servers = argv[2], *topic = argv[3];
    long count = atol(argv[4]);
    size_t size = (size_t)atol(argv[5]);
    if (strcmp(mode, "producers") == 0 && argc > 7)
        producers(servers, topic, (int)count, size, atoi(argv[6]), atol(argv[7]));
    else if (strcmp(mode, "end-to-end") == 0)
        end_to_end(servers, topic, count, size, atol(argv[6]));
    else
        die("see the head of small.c");
    fflush(stdout);
    _exit(0); /* librdkafka takes its time to close */
}
