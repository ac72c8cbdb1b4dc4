/* The stopwatch of the measuring programs, and what they print.
 *
 * It owns time, quantiles and the end of a failed run. It must never know a broker.
 */

#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static inline double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

static inline void die(const char *what) {
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static inline int by_size(const void *left, const void *right) {
    double difference = *(const double *)left - *(const double *)right;
    return difference < 0 ? -1 : difference > 0;
}

static inline void print_quantiles(double *times, long count) {
    qsort(times, (size_t)count, sizeof *times, by_size);
    printf("{\"median_us\": %.2f, \"p99_us\": %.2f}\n", times[count / 2] * 1e6,
           times[count * 99 / 100] * 1e6);
}
