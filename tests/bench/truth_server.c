/* A server whose schedule is known, to measure clients against.
 *
 *   truth_server PORT TTFT_US ITL_US TOKENS TOKENS_PER_EVENT TRUTH_FILE
 *
 * Speaks HTTP/1.1 keep-alive on 127.0.0.1 and answers a POST to .../completions with a stream of chat completion chunks: the
 * first one TTFT_US after the request reached the kernel, the others ITL_US apart, then usage and [DONE]. ITL_US 0 is a flood.
 * Any GET returns the list of models; other paths return 404, so that clients skip endpoints of their own engine.
 * TRUTH_FILE has a line for each answer: the value of "user" in the body, when the request reached the kernel, and when
 * each event was handed to the kernel (CLOCK_REALTIME, nanoseconds). One thread, one epoll loop, a heap of due events.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MAX_CONNECTIONS = 65536, REQUEST_BYTES = 1 << 16, USER_BYTES = 64 };

typedef struct {
    int fd, busy, next, got;
    int64_t arrived_ns, due_ns;
    int64_t *sent_ns;
    char user[USER_BYTES];
    char *request;
} Connection;

static Connection *connections[MAX_CONNECTIONS];
static int heap[MAX_CONNECTIONS], heap_size;
static int64_t ttft_ns, itl_ns;
static int tokens, tokens_per_event, events;
static FILE *truth;
static volatile sig_atomic_t stopping;

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int earlier(int a, int b) { return connections[a]->due_ns < connections[b]->due_ns; }

static void push(int fd) {
    int at = heap_size++;
    heap[at] = fd;
    while (at && earlier(heap[at], heap[(at - 1) / 2])) {
        int up = (at - 1) / 2, other = heap[up];
        heap[up] = heap[at]; heap[at] = other; at = up;
    }
}

static void sift_down(void) {
    for (int at = 0;;) {
        int least = at, left = 2 * at + 1;
        if (left < heap_size && earlier(heap[left], heap[least])) least = left;
        if (left + 1 < heap_size && earlier(heap[left + 1], heap[least])) least = left + 1;
        if (least == at) return;
        int other = heap[at]; heap[at] = heap[least]; heap[least] = other; at = least;
    }
}

static void pop(void) { heap[0] = heap[--heap_size]; sift_down(); }

static void forget(int fd) {
    Connection *c = connections[fd];
    if (!c) return;
    for (int i = 0; i < heap_size; i++)
        if (heap[i] == fd) {                 /* rare: the client closed; rebuild */
            heap[i] = heap[--heap_size];
            int n = heap_size, copy[8];
            (void)copy;
            heap_size = 0;
            int *rest = malloc(sizeof(int) * (n + 1));
            memcpy(rest, heap, sizeof(int) * n);
            for (int k = 0; k < n; k++) push(rest[k]);
            free(rest);
            break;
        }
    close(fd); free(c->sent_ns); free(c->request); free(c);
    connections[fd] = NULL;
}

static int send_all(int fd, const char *data, int size) {
    while (size) {
        int n = send(fd, data, size, MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN) { usleep(50); continue; }
        if (n <= 0) return -1;
        data += n; size -= n;
    }
    return 0;
}

static const char HEADER[] =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

static int chunk(char *out, const char *event) { return sprintf(out, "%x\r\n%s\r\n", (unsigned)strlen(event), event); }

/* Send the next event of a stream; 1 when it was the last. */
static int step(Connection *c) {
    char event[1024], out[4096];
    int size = 0;
    if (c->next == 0) { memcpy(out, HEADER, sizeof HEADER - 1); size = sizeof HEADER - 1; }
    char text[256] = "";
    for (int i = 0; i < tokens_per_event && c->next * tokens_per_event + i < tokens; i++) strcat(text, " word");
    snprintf(event, sizeof event,
             "data: {\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion.chunk\",\"created\":1760000000,"
             "\"model\":\"truth\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"%s\"},\"logprobs\":null,"
             "\"finish_reason\":null}]}\n\n", text);
    size += chunk(out + size, event);
    int last = ++c->next == events;
    if (last) {
        snprintf(event, sizeof event,
                 "data: {\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion.chunk\",\"created\":1760000000,"
                 "\"model\":\"truth\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"length\"}],"
                 "\"usage\":{\"prompt_tokens\":64,\"completion_tokens\":%d,\"total_tokens\":%d}}\n\n", tokens, tokens + 64);
    }
    c->sent_ns[c->next - 1] = now_ns();
    if (send_all(c->fd, out, size)) return -1;
    if (last) {
        size = chunk(out, event);
        size += sprintf(out + size, "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n");
        if (send_all(c->fd, out, size)) return -1;
        fprintf(truth, "%s %lld", c->user, (long long)c->arrived_ns);
        for (int i = 0; i < events; i++) fprintf(truth, " %lld", (long long)c->sent_ns[i]);
        fputc('\n', truth);
    }
    return last;
}

static void begin(Connection *c) {
    char *user = strstr(c->request, "\"user\":\"");
    c->user[0] = '-'; c->user[1] = 0;
    if (user) sscanf(user + 8, "%63[^\"]", c->user);
    c->busy = 1; c->next = 0; c->got = 0;
    c->due_ns = c->arrived_ns + ttft_ns;
    push(c->fd);
}

static void take(int fd) {
    Connection *c = connections[fd];
    char control[128];
    struct iovec io = {c->request + c->got, REQUEST_BYTES - 1 - c->got};
    struct msghdr message = {.msg_iov = &io, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    int n = recvmsg(fd, &message, 0);
    if (n <= 0) { if (n == 0 || errno != EAGAIN) forget(fd); return; }
    c->arrived_ns = now_ns();
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    if (head && head->cmsg_type == SO_TIMESTAMPNS) {
        struct timespec t;
        memcpy(&t, CMSG_DATA(head), sizeof t);
        c->arrived_ns = t.tv_sec * 1000000000LL + t.tv_nsec;
    }
    c->got += n;
    c->request[c->got] = 0;
    char *body = strstr(c->request, "\r\n\r\n"), *length = strcasestr(c->request, "content-length:");
    if (!body) return;
    if (c->got < body + 4 - c->request + (length && length < body ? atoi(length + 15) : 0)) return;
    if (c->request[0] == 'G') {
        static const char ok[] = "HTTP/1.1 200 OK\r\nContent-Length: 42\r\nContent-Type: application/json\r\n\r\n"
                                 "{\"object\":\"list\",\"data\":[{\"id\":\"truth\"}]}\n";
        c->got = 0;
        if (send_all(fd, ok, sizeof ok - 1)) forget(fd);
        return;
    }
    char *line_end = strstr(c->request, "\r\n"), *asked = strstr(c->request, "/completions");
    if (!asked || asked > line_end) {
        static const char missing[] = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
        c->got = 0;
        if (send_all(fd, missing, sizeof missing - 1)) forget(fd);
        return;
    }
    begin(c);
}

static void stop(int signal_number) { (void)signal_number; stopping = 1; }

int main(int argc, char **argv) {
    if (argc != 7) { fprintf(stderr, "usage: %s PORT TTFT_US ITL_US TOKENS TOKENS_PER_EVENT TRUTH_FILE\n", argv[0]); return 2; }
    ttft_ns = atoll(argv[2]) * 1000; itl_ns = atoll(argv[3]) * 1000;
    tokens = atoi(argv[4]); tokens_per_event = atoi(argv[5]);
    events = (tokens + tokens_per_event - 1) / tokens_per_event;
    truth = fopen(argv[6], "w");
    if (!truth) { perror(argv[6]); return 1; }
    setvbuf(truth, NULL, _IOFBF, 1 << 20);
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    struct sigaction action = {.sa_handler = stop};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1])), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof address;
    if (bind(listener, (void *)&address, size) || listen(listener, 8192)) { perror("listen"); return 1; }
    getsockname(listener, (void *)&address, &size);
    printf("listening %d\n", ntohs(address.sin_port));
    fflush(stdout);
    int poll = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, ready[1024];
    epoll_ctl(poll, EPOLL_CTL_ADD, listener, &event);
    while (!stopping) {
        int64_t wait_ns = heap_size ? connections[heap[0]]->due_ns - now_ns() : 50000000;
        struct timespec wait = {0, wait_ns < 0 ? 0 : wait_ns > 50000000 ? 50000000 : wait_ns};
        int n = epoll_pwait2(poll, ready, 1024, &wait, NULL);
        for (int i = 0; i < n; i++) {
            int fd = ready[i].data.fd;
            if (fd != listener) { if (connections[fd]) take(fd); continue; }
            while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
                if (fd >= MAX_CONNECTIONS) { close(fd); continue; }
                setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one);
                Connection *c = calloc(1, sizeof *c);
                c->fd = fd; c->request = malloc(REQUEST_BYTES); c->sent_ns = malloc(sizeof(int64_t) * events);
                connections[fd] = c;
                event = (struct epoll_event){.events = EPOLLIN, .data.fd = fd};
                epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event);
            }
        }
        int64_t now = now_ns();
        for (int sent = 0; heap_size && connections[heap[0]]->due_ns <= now && sent < 4096; sent++) {
            Connection *c = connections[heap[0]];
            int over = step(c);
            if (over) { pop(); c->busy = 0; if (over < 0) forget(c->fd); }
            else { c->due_ns = itl_ns ? c->arrived_ns + ttft_ns + (int64_t)c->next * itl_ns : now; sift_down(); }
        }
    }
    fclose(truth);
    return 0;
}
