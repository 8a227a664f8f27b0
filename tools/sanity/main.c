/* SPDX-License-Identifier: MIT */
/*
 * sanity/main.c - the conformance suite: does the library do what gdrapi.h
 * says, on the backend and the GPU that are here?
 *
 * The runner itself touches neither CUDA nor the library. It forks a probe that
 * finds out what is here, then one child for each case.
 */
#include "sanity.h"
#include "run.h"

#include <fnmatch.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

/* NVIDIA's library lacks it. */
extern __typeof__(gdr_get_backend) gdr_get_backend __attribute__((weak));

static const struct sanity_case *const lists[] = {
	basic_cases, data_cases, life_cases, fork_cases, error_cases
};
enum { LISTS = sizeof(lists) / sizeof(lists[0]) };

static const char *backend_name(int backend)
{
	return backend == BE_GDRDRV ? "gdrdrv" :
	       backend == BE_DMABUF ? "dmabuf" :
	       backend == BE_RM ? "rm" : "vulkan";
}

/* Whether one of the patterns, which commas part, matches all of name. */
static bool listed(const char *patterns, const char *name)
{
	char *copy = patterns ? strdup(patterns) : NULL, *save = NULL, *p;
	bool hit = false;

	for (p = copy ? strtok_r(copy, ",", &save) : NULL; p;
	     p = strtok_r(NULL, ",", &save))
		hit = hit || fnmatch(p, name, 0) == 0;
	free(copy);
	return hit;
}

/* NVIDIA's library has no gdr_get_backend, and two backends, one with an attribute. */
static enum backend find_backend(struct env *e)
{
	char name[16] = "";
	int v = 0, i;

	if (gdr_get_backend) {
		check_rc(gdr_get_backend(e->g, name, sizeof(name)), 0);
		for (i = BE_GDRDRV; i < BE_ALL; i <<= 1)
			if (!strcmp(name, backend_name(i)))
				return i;
		check(!"a backend that is known");
	}
	check_rc(gdr_get_attribute(e->g, GDR_ATTR_USING_DMA_BUF_MMAP, &v), 0);
	return v ? BE_DMABUF : BE_GDRDRV;
}

static void probe(struct env *e)
{
	int dev;

	start(e);
	check_cu(e->cu.device_get(&dev, e->gpu));
	check_cu(e->cu.device_name(verdict->probe.gpu_name,
				   sizeof(verdict->probe.gpu_name), dev));
	check_cu(e->cu.device_count(&verdict->probe.gpus));
	check_cu(e->cu.driver_version(&verdict->probe.cuda));
	gdr_runtime_get_version(&verdict->probe.lib[0], &verdict->probe.lib[1]);
	check_rc(gdr_driver_get_version(e->g, &verdict->probe.driver[0],
					&verdict->probe.driver[1]), 0);
	check_rc(gdr_get_attribute(e->g, GDR_ATTR_USE_PERSISTENT_MAPPING,
				   &verdict->probe.persistent), 0);
	check_rc(gdr_get_attribute(e->g, GDR_ATTR_SUPPORT_PIN_FLAG_FORCE_PCIE,
				   &verdict->probe.force_pcie), 0);
	verdict->probe.backend = find_backend(e);
	check_rc(gdr_close(e->g), 0);
}

/* Runs one case in a child of its own; returns CASE_* and writes why[]. */
static int run(const struct sanity_case *c, const struct env *e)
{
	int status = 0;
	pid_t pid;

	verdict->checks = 0;
	verdict->why[0] = 0;
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		struct env mine = *e;

		alarm(CASE_SECONDS);
		c->run(&mine);
		fflush(stdout);
		exit(CASE_PASSED);	/* by way of all exit handlers */
	}
	while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (pid < 0) {
		printf("#   fork: %s\n", strerror(errno));
		return CASE_FAILED;
	}
	if (WIFSIGNALED(status)) {
		printf("#   %s: signal %d (%s) after %lu checks\n",
		       WTERMSIG(status) == SIGALRM ? "stuck" : "crashed",
		       WTERMSIG(status), strsignal(WTERMSIG(status)),
		       verdict->checks);
		return CASE_FAILED;
	}
	if (WEXITSTATUS(status) == CASE_PASSED && !verdict->checks) {
		printf("#   the case checked nothing\n");
		return CASE_FAILED;
	}
	return WEXITSTATUS(status);
}

/* What the probe found; false when there is nothing to test. */
static bool look_around(struct env *e)
{
	static const struct sanity_case probe_case = { "probe", probe, BE_ALL,
						       NULL };

	if (run(&probe_case, e) != CASE_PASSED) {
		printf("Bail out! no CUDA, no such GPU, or gdr_open fails: set "
		       "GDRCOPY_ENABLE_LOGGING=1 to see why\n");
		return false;
	}
	e->backend = verdict->probe.backend;
	e->persistent = verdict->probe.persistent;
	e->force_pcie = verdict->probe.force_pcie;
	e->gpus = verdict->probe.gpus;
	e->page = e->backend & (BE_GDRDRV | BE_RM) ? GPU_PAGE_SIZE : e->host_page;
	printf("# libgdrapi %d.%d, backend %s (driver %d.%d), %s mappings\n",
	       verdict->probe.lib[0], verdict->probe.lib[1],
	       backend_name(e->backend), verdict->probe.driver[0],
	       verdict->probe.driver[1],
	       e->persistent ? "persistent" : "traditional");
	printf("# CUDA driver %d.%d, GPU %d of %d: %s\n",
	       verdict->probe.cuda / 1000, verdict->probe.cuda % 1000 / 10,
	       e->gpu, e->gpus, verdict->probe.gpu_name);
	return true;
}

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

struct totals {
	int passed, failed, skipped;
};

static void one(const struct sanity_case *c, const struct env *e,
		const char *skipped, struct totals *t)
{
	const char *why = NULL;
	double began = seconds();
	int result;

	if (listed(skipped, c->name))
		why = "asked";
	else if (!(c->backends & e->backend))
		why = c->why_not;
	result = why ? CASE_SKIPPED : run(c, e);
	if (result == CASE_SKIPPED && !why)
		why = verdict->why;

	*(result == CASE_PASSED ? &t->passed :
	  result == CASE_SKIPPED ? &t->skipped : &t->failed) += 1;
	printf("%sok %d - %s", result == CASE_PASSED || why ? "" : "not ",
	       t->passed + t->failed + t->skipped, c->name);
	if (why)
		printf(" # SKIP %s", why);
	else if (verbose)
		printf(" # %lu checks, %.2f s", verdict->checks,
		       seconds() - began);
	putchar('\n');
	fflush(stdout);
}

static void usage(FILE *f, const char *program)
{
	fprintf(f,
		"usage: %s [-hvl] [-t names] [-s names] [-d gpu]\n"
		"  -h  this text\n"
		"  -v  more about each case\n"
		"  -l  list the cases\n"
		"  -t  run only these; commas between them, patterns as in a shell\n"
		"  -s  skip these\n"
		"  -d  CUDA's number of the GPU to use (0)\n"
		"The backend is gdr_open's choice: see GDRCOPY_BACKEND.\n",
		program);
}

/* Calls each case that -t chooses; returns how many there are. */
static int for_each(const char *only, void (*f)(const struct sanity_case *c,
						void *arg), void *arg)
{
	const struct sanity_case *c;
	int i, n = 0;

	for (i = 0; i < LISTS; i++)
		for (c = lists[i]; c->name; c++)
			if (!only || listed(only, c->name)) {
				n++;
				if (f)
					f(c, arg);
			}
	return n;
}

static void print_name(const struct sanity_case *c, void *arg)
{
	(void)arg;
	puts(c->name);
}

struct run_arg {
	struct env *e;
	const char *skipped;
	struct totals totals;
};

static void run_one(const struct sanity_case *c, void *arg)
{
	struct run_arg *a = arg;

	one(c, a->e, a->skipped, &a->totals);
}

int main(int argc, char **argv)
{
	struct env e = { .host_page = (size_t)sysconf(_SC_PAGESIZE) };
	struct run_arg a = { .e = &e };
	const char *only = NULL;
	bool list = false;
	char *end;
	int opt;

	while ((opt = getopt(argc, argv, "hvlt:s:d:")) != -1) {
		switch (opt) {
		case 'h':
			usage(stdout, argv[0]);
			return 0;
		case 'v':
			verbose = true;
			break;
		case 'l':
			list = true;
			break;
		case 't':
			only = optarg;
			break;
		case 's':
			a.skipped = optarg;
			break;
		case 'd':
			e.gpu = (int)strtol(optarg, &end, 10);
			if (*end || end == optarg || e.gpu < 0) {
				fprintf(stderr, "-d takes a number\n");
				return 2;
			}
			break;
		default:
			usage(stderr, argv[0]);
			return 2;
		}
	}
	if (for_each(only, list ? print_name : NULL, NULL) == 0) {
		fprintf(stderr, "-t %s names no case; -l lists them\n", only);
		return 2;
	}
	if (list)
		return 0;

	verdict = mmap(NULL, sizeof(*verdict), PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (verdict == MAP_FAILED) {
		perror("mmap");
		return 1;
	}
	if (!look_around(&e)) {
		puts("0 passed, 1 failed, 0 skipped");
		return 1;
	}
	printf("1..%d\n", for_each(only, NULL, NULL));
	for_each(only, run_one, &a);
	printf("%d passed, %d failed, %d skipped\n", a.totals.passed,
	       a.totals.failed, a.totals.skipped);
	return a.totals.failed != 0;
}
