/* All-reduce (f32, sum) of any MPI, measured as `railweave bench allreduce` measures its own:
 * all ranks meet at a barrier, then the call is timed, and the slowest rank's time counts.
 *
 * Usage: allreduce_mpi LABEL SECONDS BYTES[,BYTES...]
 * Prints for each size: label,ranks,bytes,calls,min_us,p50_us,p99_us */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CALLS_MAX 20000
#define LARGE (1u << 20)

static int by_value(const void *left, const void *right) {
  double a = *(const double *)left, b = *(const double *)right;
  return a < b ? -1 : a > b;
}

/* Sums of these are exact in a float. */
static float value(int rank, size_t index) { return (float)((rank + 1) * (int)(index % 7 + 1)); }

static void fail(const char *what) {
  fprintf(stderr, "allreduce_mpi: %s\n", what);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

static void measure(const char *label, double seconds, size_t bytes, int rank, int ranks) {
  static double times[CALLS_MAX], slowest[CALLS_MAX];
  size_t count = bytes / sizeof(float);
  float *input = malloc(bytes), *output = malloc(bytes);
  if (!input || !output) fail("no memory");
  for (size_t i = 0; i < count; i++) input[i] = value(rank, i);
  memset(output, 0, bytes);
  int warm = bytes > LARGE ? 3 : 50, calls = 0, stop = 0;
  double end = 0;
  while (!stop) {
    MPI_Barrier(MPI_COMM_WORLD);
    double begun = MPI_Wtime();
    MPI_Allreduce(input, output, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    double took = MPI_Wtime() - begun;
    if (warm > 0) {
      warm--;
      end = MPI_Wtime() + seconds;
      continue;
    }
    times[calls++] = took;
    if (bytes > LARGE || calls % 10 == 0) {
      stop = MPI_Wtime() > end || calls >= CALLS_MAX;
      MPI_Bcast(&stop, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
  }
  int factor = ranks * (ranks + 1) / 2;
  for (size_t i = 0; i < count; i++)
    if (output[i] != (float)(factor * (int)(i % 7 + 1))) fail("a sum is wrong");
  MPI_Reduce(times, slowest, calls, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
  if (rank == 0) {
    qsort(slowest, (size_t)calls, sizeof *slowest, by_value);
    printf("%s,%d,%zu,%d,%.3f,%.3f,%.3f\n", label, ranks, bytes, calls, slowest[0] * 1e6,
           slowest[calls / 2] * 1e6, slowest[(int)(calls * 0.99)] * 1e6);
    fflush(stdout);
  }
  free(input);
  free(output);
}

int main(int argc, char **argv) {
  int rank, ranks;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (argc != 4) fail("usage: allreduce_mpi LABEL SECONDS BYTES[,BYTES...]");
  for (char *size = strtok(argv[3], ","); size; size = strtok(NULL, ","))
    measure(argv[1], atof(argv[2]), strtoull(size, NULL, 10), rank, ranks);
  MPI_Finalize();
  return 0;
}
