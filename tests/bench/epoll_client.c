/* The cheapest possible client: a closed loop on one epoll with kernel stamps that keeps nothing but sums.
 *
 *   epoll_client PORT STREAMS REQUESTS TOKENS
 *
 * Sends what `truth.py` sends, reads until the answer's last chunk, counts events by their "content", and prints JSON:
 * mean TTFT (stamp of the first content minus the send), events, seconds from the first send to the last answer, CPU seconds.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { READ_BYTES = 65536, MAX_CONNECTIONS = 65536 };

static int64_t sent_ns[MAX_CONNECTIONS], first_ns[MAX_CONNECTIONS];
static char tail[MAX_CONNECTIONS][8];
static int next_request, requests, done, tokens, words;
static int64_t events, ttft_sum;
static char prompt[512];

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void ask(int fd) {
    if (next_request == requests) return;
    char body[1024], out[2048];
    int size = snprintf(body, sizeof body,
                        "{\"model\":\"truth\",\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}],\"max_tokens\":%d,"
                        "\"stream\":true,\"user\":\"r%d\"}", prompt, tokens, next_request++);
    int total = snprintf(out, sizeof out,
                         "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                         "Content-Length: %d\r\n\r\n%s", size, body);
    first_ns[fd] = 0;
    memset(tail[fd], 0, sizeof tail[fd]);
    sent_ns[fd] = now_ns();
    if (send(fd, out, total, MSG_NOSIGNAL) != total) { perror("send"); exit(1); }
}

int main(int argc, char **argv) {
    if (argc != 5) { fprintf(stderr, "usage: %s PORT STREAMS REQUESTS TOKENS\n", argv[0]); return 2; }
    int streams = atoi(argv[2]), one = 1;
    requests = atoi(argv[3]); tokens = atoi(argv[4]); words = 64;
    for (int i = 0; i < words; i++) strcat(prompt, "word ");
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    int poll = epoll_create1(0), *fds = malloc(sizeof(int) * streams);
    for (int i = 0; i < streams; i++) {
        struct sockaddr_in address = {
            .sin_family = AF_INET, .sin_port = htons(atoi(argv[1])), .sin_addr = {htonl(INADDR_LOOPBACK)}};
        int fd = fds[i] = socket(AF_INET, SOCK_STREAM, 0);
        if (fd < 0 || fd >= MAX_CONNECTIONS || connect(fd, (void *)&address, sizeof address)) { perror("connect"); return 1; }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one);
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
        epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event);
    }
    int64_t began = now_ns();
    for (int i = 0; i < streams && i < requests; i++) ask(fds[i]);
    static char data[READ_BYTES + 1];
    struct epoll_event ready[1024];
    while (done < requests) {
        int n = epoll_wait(poll, ready, 1024, 1000);
        for (int i = 0; i < n; i++) {
            int fd = ready[i].data.fd;
            char control[128];
            struct iovec io = {data, READ_BYTES};
            struct msghdr message = {.msg_iov = &io, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
            int got = recvmsg(fd, &message, MSG_DONTWAIT);
            if (got < 0 && errno == EAGAIN) continue;
            if (got <= 0) { fprintf(stderr, "the server closed a connection\n"); return 1; }
            data[got] = 0;
            int64_t stamp = now_ns();
            struct cmsghdr *head = CMSG_FIRSTHDR(&message);
            if (head && head->cmsg_type == SO_TIMESTAMPNS) {
                struct timespec t;
                memcpy(&t, CMSG_DATA(head), sizeof t);
                stamp = t.tv_sec * 1000000000LL + t.tv_nsec;
            }
            int found = 0;
            for (char *at = data; (at = memmem(at, data + got - at, "\"content\":\"", 11)); at += 11) found++;
            events += found;
            if (found && !first_ns[fd]) { first_ns[fd] = stamp; ttft_sum += stamp - sent_ns[fd]; }
            char last[16];
            int keep = got < 7 ? got : 7;
            memcpy(last, tail[fd], 7);
            memcpy(last + 7, data + got - keep, keep);
            memmove(tail[fd], last + keep, 7);
            if (!memcmp(tail[fd], "\r\n0\r\n\r\n", 7)) { done++; ask(fd); }
        }
    }
    int64_t ended = now_ns();
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    double cpu_s = used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
    printf("{\"ttft_ms_mean\": %.6f, \"events\": %lld, \"elapsed_s\": %.6f, \"cpu_s\": %.6f}\n",
           ttft_sum / 1e6 / requests, (long long)events, (ended - began) / 1e9, cpu_s);
    return 0;
}
