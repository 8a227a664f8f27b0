/* SPDX-License-Identifier: MIT */
/*
 * sanity/main.c - the conformance suite: does the library do what gdrapi.h
 * says, on the backend and the GPU that are here?
 *
 * The runner itself touches neither CUDA nor the library. It forks a probe that
 * finds out what is here, then one child for each case.
 */
#define _GNU_SOURCE 1	/* asprintf */
#include "sanity.h"
#include "run.h"
#include "progress.h"
#include "version.h"

#include <fcntl.h>
#include <fnmatch.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

#define PROGRAM "gdrcopy_sanity"
#define SEE_HELP "see '" PROGRAM " --help'"

static const struct sanity_case *const lists[] = {
	basic_cases, range_cases, query_cases, together_cases,
	data_cases, life_cases, fork_cases, error_cases
};
enum { LISTS = sizeof(lists) / sizeof(lists[0]) };

/* Where the totals go: stdout, which in NVIDIA's form (--compat) has no other lines but its lists. */
static FILE *report;
static bool compat;

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
	progress_wipe();
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

/* What the summary has: names of cases, with what is to be said of them. */
struct list {
	char *text;
	size_t len;
	FILE *f;
};

struct totals {
	int passed, failed, skipped;
	struct list failures, skips;
};

/* The last line is NVIDIA's, which scripts look for: GDRCopy 2.4 to 2.6, tests/testsuites/testsuite.cpp. */
static void print_totals(const struct totals *t)
{
	printf("%d passed, %d failed, %d skipped\n", t->passed, t->failed, t->skipped);
	fprintf(report, "Total: %d, Passed: %d, Failed: %d, Waived: %d\n",
		t->passed + t->failed + t->skipped, t->passed, t->failed, t->skipped);
}

/* Looks at what there is. Returns the exit status where there is nothing to test, else 0. */
static int look_around(struct env *e)
{
	static const struct sanity_case probe_case = { "probe", probe, BE_ALL,
						       NULL };
	int result = run(&probe_case, e);

	switch (result) {
	case CASE_PASSED:
		break;
	case CASE_SKIPPED:
		printf("1..0 # SKIP %s\n", verdict->why);
		fprintf(stderr, PROGRAM ": %s\n", verdict->why);
		return result;
	case CASE_USAGE:
		fprintf(stderr, PROGRAM ": there is no GPU %d: CUDA sees %d; " SEE_HELP "\n",
			e->gpu, verdict->probe.gpus);
		return result;
	default:
		puts("Bail out! CUDA does not work, or gdr_open fails: set "
		     "GDRCOPY_ENABLE_LOGGING=1 to see why");
		print_totals(&(struct totals){ .failed = 1 });
		return CASE_FAILED;
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
	return 0;
}

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

/* status, or that of a failure where stdout did not take all. */
static int flushed(int status)
{
	if (!fflush(stdout) && !ferror(stdout) && !fflush(report) && !ferror(report))
		return status;
	fprintf(stderr, PROGRAM ": cannot write the output: %s\n", strerror(errno));
	return CASE_FAILED;
}

static void list_open(struct list *l)
{
	l->f = open_memstream(&l->text, &l->len);
	if (!l->f) {
		perror("open_memstream");
		exit(CASE_FAILED);
	}
}

static void list_print(struct list *l, const char *title)
{
	fclose(l->f);
	if (!compat)
		printf("# %s:\n%s", title, l->len ? l->text : "#   none\n");
	else if (l->len)
		fprintf(report, "\nList of %s tests:\n%s", title, l->text);
	free(l->text);
}

static void one(const struct sanity_case *c, const struct env *e,
		const char *skipped, struct totals *t)
{
	const char *why = NULL;
	double began = seconds();
	int result;

	progress("%s", c->name);
	if (compat && verbose)
		fprintf(stderr, "&&&& RUNNING %s\n", c->name);
	if (listed(skipped, c->name))
		why = "asked";
	else if (!(c->backends & e->backend))
		why = c->why_not;
	result = why ? CASE_SKIPPED : run(c, e);
	if (result == CASE_SKIPPED && !why)
		why = verdict->why;

	progress_wipe();
	*(result == CASE_PASSED ? &t->passed :
	  result == CASE_SKIPPED ? &t->skipped : &t->failed) += 1;
	if (result == CASE_SKIPPED)
		fprintf(t->skips.f, compat ? "    %s\n" : "#   %s: %s\n", c->name, why);
	else if (result != CASE_PASSED)
		fprintf(t->failures.f, compat ? "    %s\n" : "#   %s\n", c->name);
	if (compat && verbose)
		fprintf(stderr, "&&&& %s %s\n", result == CASE_PASSED ? "PASSED" :
			result == CASE_SKIPPED ? "WAIVED" : "FAILED", c->name);
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

static const char help[] =
	"Usage: " PROGRAM " [options]\n\n"
	"Checks that the library does what gdrapi.h says, on the backend and the GPU that are\n"
	"here. The backend is gdr_open's choice: see GDRCOPY_BACKEND.\n\n"
	"Options:\n"
	"  -h, --help           print this text\n"
	"  -V, --version        print the library's release, commit, Go and backends\n"
	"  -v, --verbose        print more about each case\n"
	"  -s, --no-summary     do not print at the end which cases failed or were skipped,\n"
	"                       and how many\n"
	"      --compat         print the totals and the lists as NVIDIA's program does\n"
	"  -l, --list           list the cases and run none\n"
	"  -e, --extended       run the extended cases, too: here, none is left out without it\n"
	"  -t, --test NAMES     run only these; commas between them, patterns as in a shell\n"
	"      --skip NAMES     skip these\n"
	"  -d, --device GPU     CUDA's number of the GPU (0)\n\n"
	"Exit status: 0 when no case failed, 1 when one did or gdr_open fails, 2 for a bad\n"
	"argument, 77 when there is no GPU.\n";

/* Says what is wrong with the arguments, and what to do. */
__attribute__((format(printf, 1, 2), noreturn))
static void usage(const char *fmt, ...)
{
	va_list ap;

	fputs(PROGRAM ": ", stderr);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputs("; " SEE_HELP "\n", stderr);
	exit(CASE_USAGE);
}

/* Adds names to a list with commas, for an option that is given more than once. */
static void add_names(char **list, const char *names)
{
	char *old = *list;

	if (asprintf(list, "%s%s%s", old ? old : "", old ? "," : "", names) < 0) {
		perror("asprintf");
		exit(CASE_FAILED);
	}
	free(old);
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

struct args {
	char *only, *skipped;	/* NULL: not given */
	bool list, quiet;
	int gpu;
};

static int number(const char *text)
{
	char *end;
	long n = strtol(text, &end, 0);

	if (*end || end == text || n < 0 || n > 1023)
		usage("-d takes a number from 0 to 1023, not '%s'", text);
	return (int)n;
}

static void parse(struct args *a, int argc, char **argv)
{
	static const struct option longs[] = {
		{ "help", no_argument, NULL, 'h' },
		{ "version", no_argument, NULL, 'V' },
		{ "verbose", no_argument, NULL, 'v' },
		{ "no-summary", no_argument, NULL, 's' },
		{ "extended", no_argument, NULL, 'e' },
		{ "list", no_argument, NULL, 'l' },
		{ "test", required_argument, NULL, 't' },
		{ "skip", required_argument, NULL, 'S' },
		{ "compat", no_argument, NULL, 'C' },
		{ "device", required_argument, NULL, 'd' },
		{ 0 }
	};
	int opt;

	opterr = 0;
	while ((opt = getopt_long(argc, argv, ":hVvslet:d:", longs, NULL)) != -1) {
		switch (opt) {
		case 'h':
			fputs(help, stdout);
			exit(flushed(CASE_PASSED));
		case 'V':
			print_version(PROGRAM);
			exit(flushed(CASE_PASSED));
		case 'v':
			verbose = true;
			break;
		case 's':
			a->quiet = true;
			break;
		case 'e':
			break;
		case 'l':
			a->list = true;
			break;
		case 't':
			add_names(&a->only, optarg);
			break;
		case 'S':
			add_names(&a->skipped, optarg);
			break;
		case 'C':
			compat = true;
			break;
		case 'd':
			a->gpu = number(optarg);
			break;
		case ':':
			usage("%s needs a value", argv[optind - 1]);
		default:
			usage("unknown option %s", argv[optind - 1]);
		}
	}
	if (optind < argc)
		usage("'%s' is no option", argv[optind]);
	if (for_each(a->only, NULL, NULL) == 0)
		usage("-t %s names no case; -l lists them", a->only);
	if (a->skipped && for_each(a->skipped, NULL, NULL) == 0)
		usage("--skip %s names no case; -l lists them", a->skipped);
}

/* NVIDIA's program prints no TAP: it goes to standard error with -v, else nowhere. */
static void without_tap(void)
{
	int to;

	report = fdopen(fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0), "w");
	to = verbose ? STDERR_FILENO : open("/dev/null", O_WRONLY | O_CLOEXEC);
	if (!report || to < 0 || dup2(to, STDOUT_FILENO) < 0) {
		perror("--compat");
		exit(CASE_FAILED);
	}
}

int main(int argc, char **argv)
{
	struct env e = { .host_page = (size_t)sysconf(_SC_PAGESIZE) };
	struct run_arg run = { .e = &e };
	struct totals *t = &run.totals;
	struct args a = { 0 };
	int status;

	report = stdout;
	parse(&a, argc, argv);
	if (a.list) {
		for_each(a.only, print_name, NULL);
		return flushed(CASE_PASSED);
	}
	if (compat)
		without_tap();
	e.gpu = a.gpu;
	run.skipped = a.skipped;
	verdict = mmap(NULL, sizeof(*verdict), PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (verdict == MAP_FAILED) {
		perror("mmap");
		return CASE_FAILED;
	}
	status = look_around(&e);
	if (status)
		return status;
	list_open(&t->failures);
	list_open(&t->skips);
	progress_total((size_t)for_each(a.only, NULL, NULL));
	printf("1..%d\n", for_each(a.only, NULL, NULL));
	for_each(a.only, run_one, &run);
	if (!a.quiet) {
		if (compat)
			print_totals(t);
		list_print(&t->failures, compat ? "failed" : "Failed");
		list_print(&t->skips, compat ? "waived" : "Skipped");
		if (!compat)
			print_totals(t);
	}
	return flushed(t->failed ? CASE_FAILED : CASE_PASSED);
}
