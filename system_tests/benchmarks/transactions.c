/* The measuring client of transactions: librdkafka's transactional producers, one after the other
 * or several at a time.
 *
 * It owns the stopwatch and prints one line of JSON a run; which broker it speaks to and what the
 * figures mean is known to the Python side only.
 *
 * transactions commit HOST:PORT TOPIC COUNT SIZE PARTITIONS RECORDS PRODUCERS   COUNT transactions
 *                     of each producer, each of RECORDS records over the partitions in turn; one
 *                     in ten is not counted and comes before
 */

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "librdkafka.h"
#include "stopwatch.h"

enum { PATIENCE_MS = 30000, WARM_UP_SHARE = 10 };

struct producer {
    rd_kafka_t *client;
    rd_kafka_topic_t *to;
    char *payload;
    size_t size;
    long count, records;
    int partitions;
    double *times;
    pthread_t thread;
};

static pthread_barrier_t warm;

static void check(rd_kafka_error_t *error) {
    if (error != NULL)
        die(rd_kafka_error_string(error));
}

static void delivered(rd_kafka_t *client, const rd_kafka_message_t *message, void *opaque) {
    (void)client;
    (void)opaque;
    if (message->err)
        die(rd_kafka_err2str(message->err));
}

static void open_producer(struct producer *producer, const char *servers, const char *topic,
                          int number) {
    char error[256], id[128];
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    snprintf(id, sizeof id, "%s-%d", topic, number);
    set(conf, "bootstrap.servers", servers);
    set(conf, "transactional.id", id);
    set(conf, "log_level", "2");
    rd_kafka_conf_set_dr_msg_cb(conf, delivered);
    producer->client = rd_kafka_new(PRODUCER, conf, error, sizeof error);
    if (producer->client == NULL)
        die(error);
    producer->to = rd_kafka_topic_new(producer->client, topic, NULL);
    check(rd_kafka_init_transactions(producer->client, PATIENCE_MS));
}

static void run_transaction(struct producer *producer) {
    check(rd_kafka_begin_transaction(producer->client));
    for (long i = 0; i < producer->records; i++) {
        int32_t partition = (int32_t)(i % producer->partitions);
        if (rd_kafka_produce(producer->to, partition, FLAG_COPY, producer->payload, producer->size,
                             NULL, 0, NULL) != 0)
            die("a record was not accepted");
    }
    check(rd_kafka_commit_transaction(producer->client, PATIENCE_MS));
}

static long warm_ups(long count) {
    return count / WARM_UP_SHARE + 1;
}

static void *run(void *argument) {
    struct producer *producer = argument;
    for (long i = 0; i < warm_ups(producer->count); i++)
        run_transaction(producer);
    pthread_barrier_wait(&warm);
    for (long i = 0; i < producer->count; i++) {
        double began = now();
        run_transaction(producer);
        producer->times[i] = now() - began;
    }
    pthread_barrier_wait(&warm);
    return NULL;
}

static void commit(const char *servers, const char *topic, char **rest) {
    long count = atol(rest[0]), producers = atol(rest[4]);
    struct producer *all = calloc((size_t)producers, sizeof *all);
    double *times = calloc((size_t)(count * producers), sizeof *times);
    pthread_barrier_init(&warm, NULL, (unsigned)producers + 1);
    for (long i = 0; i < producers; i++) {
        all[i] = (struct producer){.payload = filler((size_t)atol(rest[1])),
                                   .size = (size_t)atol(rest[1]),
                                   .count = count,
                                   .records = atol(rest[3]),
                                   .partitions = atoi(rest[2]),
                                   .times = times + i * count};
        open_producer(&all[i], servers, topic, (int)i);
        if (pthread_create(&all[i].thread, NULL, run, &all[i]) != 0)
            die("no thread");
    }
    pthread_barrier_wait(&warm);
    double began = now();
    pthread_barrier_wait(&warm);
    double took = now() - began;
    qsort(times, (size_t)(count * producers), sizeof *times, by_size);
    printf("{\"transactions\": %ld, \"all_transactions\": %ld, \"seconds\": %.6f, "
           "\"median_us\": %.2f, \"p99_us\": %.2f}\n",
           count * producers, (count + warm_ups(count)) * producers, took,
           times[count * producers / 2] * 1e6, times[count * producers * 99 / 100] * 1e6);
}

int main(int argc, char **argv) {
    if (argc < 9 || strcmp(argv[1], "commit") != 0)
        die("see the head of transactions.c");
    commit(argv[2], argv[3], argv + 4);
    fflush(stdout);
    _exit(0); /* librdkafka takes its time to close */
}
