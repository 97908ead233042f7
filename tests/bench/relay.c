/* The least that a relay does: one thread copies what it reads from one socket to the other. What it adds to a token is the machine's
   share of what `servebench record` adds.

   relay PORT SERVICE_PORT: both on 127.0.0.1; prints "ready" when it listens, and ends with SIGKILL. */

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { EVENTS = 256, SOCKETS = 65536 };

static int peer[SOCKETS];
static char buffer[65536];

static struct sockaddr_in at(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

static void watch(int epoll, int socket) {
    struct epoll_event event = {.events = EPOLLIN, .data.fd = socket};
    epoll_ctl(epoll, EPOLL_CTL_ADD, socket, &event);
}

static void join(int epoll, int client, int service_port) {
    int service = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    struct sockaddr_in address = at(service_port);
    connect(service, (struct sockaddr *)&address, sizeof address);
    setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(service, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    peer[client] = service;
    peer[service] = client;
    watch(epoll, client);
    watch(epoll, service);
}

static void copy(int from) {
    int to = peer[from];
    ssize_t size = read(from, buffer, sizeof buffer);
    for (ssize_t sent = 0, step; sent < size; sent += step) {
        if ((step = write(to, buffer + sent, size - sent)) <= 0) break;
    }
    if (size <= 0) {
        close(from);
        close(to);
    }
}

int main(int count, char **words) {
    if (count != 3) return 2;
    int listener = socket(AF_INET, SOCK_STREAM, 0), epoll = epoll_create1(0), on = 1;
    struct sockaddr_in address = at(atoi(words[1]));
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 4096)) return 1;
    watch(epoll, listener);
    puts("ready");
    fflush(stdout);
    struct epoll_event events[EVENTS];
    for (;;) {
        int ready = epoll_wait(epoll, events, EVENTS, -1);
        for (int i = 0; i < ready; i++) {
            int socket = events[i].data.fd;
            if (socket == listener) join(epoll, accept(listener, NULL, NULL), atoi(words[2]));
            else copy(socket);
        }
    }
}
