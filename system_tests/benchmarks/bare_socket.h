/* A bare socket to a broker: connect, receive exactly.
 *
 * It owns nothing but the socket's options. A connection that breaks ends the run.
 */

#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>

#include "stopwatch.h"

static inline struct sockaddr_in address_of(const char *server) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    char host[128];
    const char *colon = strrchr(server, ':');
    snprintf(host, sizeof host, "%.*s", (int)(colon - server), server);
    address.sin_port = htons((uint16_t)atoi(colon + 1));
    if (inet_pton(AF_INET, host, &address.sin_addr) != 1)
        die("the address must be a numeric one");
    return address;
}

static inline int connect_to(const struct sockaddr_in *address) {
    int stream = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    setsockopt(stream, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    if (connect(stream, (const struct sockaddr *)address, sizeof *address) != 0)
        die("could not connect");
    return stream;
}

static inline void receive(int stream, char *into, size_t size) {
    while (size > 0) {
        ssize_t got = recv(stream, into, size, 0);
        if (got <= 0)
            die("the connection was closed");
        into += got;
        size -= (size_t)got;
    }
}
