/* The least an all-reduce in shared memory can cost here: every rank's vectors are mapped by all;
 * rank r sums slice r of all inputs and writes it to all outputs, between two barriers of plain
 * flags. No deadlines, no telemetry, no recovery.
 *
 * Usage: floor LABEL RANKS SECONDS BYTES[,BYTES...]
 * Prints for each size: label,ranks,bytes,calls,min_us,p50_us,p99_us */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CALLS_MAX 20000
#define RANKS_MAX 16
#define LARGE (1u << 20)

struct flag {
  _Alignas(128) atomic_uint value;
};
struct common {
  struct flag arrived[RANKS_MAX];
  atomic_int stop;
  double times[RANKS_MAX][CALLS_MAX];
};

static int ranks, crowded;
static struct common *common;

static double now(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return (double)at.tv_sec + (double)at.tv_nsec * 1e-9;
}

static void *shared(size_t bytes) {
  void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) {
    perror("floor: mmap");
    exit(1);
  }
  return at;
}

static void meet(int me, unsigned *meetings) {
  unsigned want = ++*meetings;
  atomic_store_explicit(&common->arrived[me].value, want, memory_order_release);
  for (int peer = 0; peer < ranks; peer++)
    while ((int)(atomic_load_explicit(&common->arrived[peer].value, memory_order_acquire) - want) < 0)
      if (crowded)
        sched_yield();
      else
        __builtin_ia32_pause();
}

static void sum(float *inputs, float *outputs, size_t count, size_t start, size_t end) {
  for (size_t i = start; i < end; i++) {
    float total = inputs[i];
    for (int rank = 1; rank < ranks; rank++) total += inputs[(size_t)rank * count + i];
    for (int rank = 0; rank < ranks; rank++) outputs[(size_t)rank * count + i] = total;
  }
}

static int by_value(const void *left, const void *right) {
  double a = *(const double *)left, b = *(const double *)right;
  return a < b ? -1 : a > b;
}

/* One rank's part; answers the number of calls. */
static int work(int me, float *inputs, float *outputs, size_t count, double seconds) {
  size_t share = (count + (size_t)ranks - 1) / (size_t)ranks, start = share * (size_t)me;
  if (start > count) start = count;
  size_t end = start + share < count ? start + share : count;
  int large = count * sizeof(float) > LARGE, warm = large ? 3 : 50, calls = 0;
  unsigned meetings = 0;
  double limit = 0;
  for (size_t i = 0; i < count; i++) inputs[(size_t)me * count + i] = (float)((me + 1) * (int)(i % 7 + 1));
  for (;;) {
    meet(me, &meetings);
    double begun = now();
    meet(me, &meetings);
    sum(inputs, outputs, count, start, end);
    meet(me, &meetings);
    double took = now() - begun;
    if (warm > 0) {
      warm--;
      limit = now() + seconds;
      continue;
    }
    common->times[me][calls++] = took;
    if (large || calls % 10 == 0) {
      if (me == 0) atomic_store(&common->stop, now() > limit || calls >= CALLS_MAX);
      meet(me, &meetings);
      if (atomic_load(&common->stop)) break;
    }
  }
  int factor = ranks * (ranks + 1) / 2;
  for (size_t i = 0; i < count; i++)
    if (outputs[(size_t)me * count + i] != (float)(factor * (int)(i % 7 + 1))) {
      fputs("floor: a sum is wrong\n", stderr);
      exit(1);
    }
  return calls;
}

static void measure(const char *label, double seconds, size_t bytes) {
  size_t count = bytes / sizeof(float), all = (size_t)ranks * bytes;
  float *inputs = shared(all), *outputs = shared(all);
  int me = 0, cores = (int)sysconf(_SC_NPROCESSORS_ONLN), bad = 0;
  memset(common, 0, sizeof *common);
  fflush(stdout);
  for (int rank = 1; rank < ranks && !me; rank++) {
    pid_t child = fork();
    if (child < 0) {
      perror("floor: fork");
      exit(1);
    }
    if (!child) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      me = rank;
    }
  }
  cpu_set_t core;
  CPU_ZERO(&core);
  for (int i = 0; i < cores; i++)
    if (crowded || i == me) CPU_SET(i, &core);
  sched_setaffinity(0, sizeof core, &core);
  int calls = work(me, inputs, outputs, count, seconds);
  if (me) exit(0);
  for (int rank = 1; rank < ranks; rank++) {
    int status = 0;
    wait(&status);
    bad |= status;
  }
  if (bad) exit(1);
  for (int call = 0; call < calls; call++)
    for (int rank = 1; rank < ranks; rank++)
      if (common->times[rank][call] > common->times[0][call])
        common->times[0][call] = common->times[rank][call];
  double *slowest = common->times[0];
  qsort(slowest, (size_t)calls, sizeof *slowest, by_value);
  printf("%s,%d,%zu,%d,%.3f,%.3f,%.3f\n", label, ranks, bytes, calls, slowest[0] * 1e6,
         slowest[calls / 2] * 1e6, slowest[(int)(calls * 0.99)] * 1e6);
  fflush(stdout);
  munmap(inputs, all);
  munmap(outputs, all);
}

int main(int argc, char **argv) {
  if (argc != 5 || (ranks = atoi(argv[2])) < 1 || ranks > RANKS_MAX) {
    fputs("usage: floor LABEL RANKS SECONDS BYTES[,BYTES...]\n", stderr);
    return 2;
  }
  crowded = ranks > (int)sysconf(_SC_NPROCESSORS_ONLN);
  common = shared(sizeof *common);
  for (char *size = strtok(argv[4], ","); size; size = strtok(NULL, ","))
    measure(argv[1], atof(argv[3]), strtoull(size, NULL, 10));
  return 0;
}
