/* Included before each file of librdkafka's tests: topics that they create have one replica, as
 * there is one broker. Many tests ask for three. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <rdkafka.h>

#define rd_kafka_NewTopic_new(topic, partitions, replicas, error, size)                            \
    rd_kafka_NewTopic_new(topic, partitions, (replicas) > 1 ? 1 : (replicas), error, size)
