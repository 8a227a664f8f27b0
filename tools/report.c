/* SPDX-License-Identifier: MIT */
/*
 * gdrcopy_report - runs the other benchmarks and makes one HTML page of what
 * they found, with plots in it, and the plots as SVG files.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/json.h"
#include "bench/opt.h"
#include "bench/out.h"
#include "bench/svg.h"
#include "gdrapi.h"

#define MAX_ARGS 24
#define BW_BUDGET "300"		/* ms for each figure of gdrcopy_copybw */

static const struct bench_tool tool = {
	.name = "gdrcopy_report",
	.codes = (const char[]){ OPT_GPU, OPT_SIZE, OPT_MAP, OPT_ALLOC, OPT_BUDGET, OPT_CPU,
				 OPT_BACKEND, OPT_OUT, OPT_IN, OPT_THREADS, 0 },
	.what = "Runs gdrcopy_copylat, gdrcopy_copybw, gdrcopy_apiperf and gdrcopy_pplat, which\n"
		"must be beside it, and writes into -o (the current directory) their JSON, one\n"
		"page gdrcopy_report.html that needs no other file, and its plots as .svg.",
	.method =
		"  -s (16 MiB) is the largest copy and --budget (100) goes to gdrcopy_copylat.\n"
		"  gdrcopy_copybw runs with 1, 2, 4 and so on threads up to --threads (8, or\n"
		"  the CPUs if they are fewer) for a few sizes. The --help of each benchmark\n"
		"  says how it measures. -d, -M, -a, --cpu and --backend go to all of them. One\n"
		"  that this machine cannot run is left out, and the page says so.",
};

static const size_t bw_sizes[] = { 16 << 10, 256 << 10, 1 << 20, 16 << 20 };

#define BW_SIZES (sizeof(bw_sizes) / sizeof(bw_sizes[0]))
#define BW_THREADS 9		/* 1, 2, 4 ... 256 */

/* All that was measured; a NULL was not. */
struct found {
	struct json *lat, *api, *pp;
	struct json *bw[BW_SIZES][BW_THREADS];
};

/* What the lines of the plots look like, by who made the copies. */
struct look {
	const char *who, *mode, *name, *color, *dash;
	double width;
};

static const struct look write_looks[] = {
	{ "gdrcopy", "back-to-back", "gdrcopy", "#0b62c4", "", 2.6 },
	{ "gdrcopy", "alone", "gdrcopy, alone", "#0b62c4", "7 4", 1.8 },
	{ "cuMemcpy", "back-to-back", "cuMemcpyHtoD", "#d1344b", "", 2.2 },
	{ "memcpy", "back-to-back", "libc memcpy", "#7b8794", "2 3", 1.4 },
	{ "plain", "back-to-back", "plain stores", "#1f2933", "4 3", 1.4 },
	{ "sse2", "back-to-back", "SSE2 loop", "#2a9d8f", "4 3", 1.4 },
	{ "avx2", "back-to-back", "AVX2 loop", "#e08e1b", "4 3", 1.4 },
	{ "avx512", "back-to-back", "AVX-512 loop", "#7b4fa6", "4 3", 1.4 },
	{ "movdir64b", "back-to-back", "MOVDIR64B loop", "#5f8a1c", "4 3", 1.4 },
	{ NULL, NULL, NULL, NULL, NULL, 0 }
};

static const struct look alone_looks[] = {
	{ "gdrcopy", "alone", "gdrcopy", "#0b62c4", "", 2.6 },
	{ "memcpy", "alone", "libc memcpy", "#7b8794", "2 3", 1.4 },
	{ "plain", "alone", "plain stores", "#1f2933", "4 3", 1.4 },
	{ "sse2", "alone", "SSE2 loop", "#2a9d8f", "4 3", 1.4 },
	{ "avx2", "alone", "AVX2 loop", "#e08e1b", "4 3", 1.4 },
	{ "avx512", "alone", "AVX-512 loop", "#7b4fa6", "4 3", 1.4 },
	{ "movdir64b", "alone", "MOVDIR64B loop", "#5f8a1c", "4 3", 1.4 },
	{ NULL, NULL, NULL, NULL, NULL, 0 }
};

static const struct look read_looks[] = {
	{ "gdrcopy", "back-to-back", "gdrcopy", "#0b62c4", "", 2.6 },
	{ "cuMemcpy", "back-to-back", "cuMemcpyDtoH", "#d1344b", "", 2.2 },
	{ "memcpy", "back-to-back", "libc memcpy", "#7b8794", "2 3", 1.4 },
	{ "plain", "back-to-back", "plain loads", "#1f2933", "4 3", 1.4 },
	{ "sse4.1", "back-to-back", "SSE4.1 loop", "#2a9d8f", "4 3", 1.4 },
	{ "avx2", "back-to-back", "AVX2 loop", "#e08e1b", "4 3", 1.4 },
	{ "avx512", "back-to-back", "AVX-512 loop", "#7b4fa6", "4 3", 1.4 },
	{ NULL, NULL, NULL, NULL, NULL, 0 }
};

/* Running the benchmarks. */

static void sibling(char *buf, size_t len, const char *name)
{
	char self[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	char *slash;

	if (n < 0)
		bench_die("%s: /proc/self/exe: %s", tool.name, strerror(errno));
	self[n] = '\0';
	slash = strrchr(self, '/');
	*slash = '\0';
	if ((size_t)snprintf(buf, len, "%s/%s", self, name) >= len)
		bench_die("%s: the path of %s is too long", tool.name, name);
}

static void join(char *buf, size_t len, const char *dir, const char *file)
{
	if ((size_t)snprintf(buf, len, "%s/%s", dir, file) >= len)
		bench_die("%s: the path of %s is too long", tool.name, file);
}

static void exec_into(const char *out, char *const argv[])
{
	int fd = open(out, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);

	if (fd < 0 || dup2(fd, STDOUT_FILENO) < 0)
		fprintf(stderr, "%s: %s: %s\n", tool.name, out, strerror(errno));
	else
		execv(argv[0], argv);
	fprintf(stderr, "%s: %s: %s\n", tool.name, argv[0], strerror(errno));
	_exit(127);
}

/* Returns false when this machine cannot run it; a failure ends the program. */
static bool run_into(const char *out, char *const argv[])
{
	pid_t pid;
	int status;

	fflush(NULL);
	pid = fork();
	if (pid < 0)
		bench_die("%s: fork: %s", tool.name, strerror(errno));
	if (pid == 0)
		exec_into(out, argv);
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			bench_die("%s: waitpid: %s", tool.name, strerror(errno));
	if (WIFEXITED(status) && WEXITSTATUS(status) == BENCH_OK)
		return true;
	unlink(out);
	if (WIFEXITED(status) && WEXITSTATUS(status) == BENCH_SKIPPED)
		return false;
	if (WIFEXITED(status) && WEXITSTATUS(status) == BENCH_USAGE)
		exit(BENCH_USAGE);
	if (WIFSIGNALED(status))
		bench_die("%s: %s died of signal %d", tool.name, argv[0], WTERMSIG(status));
	bench_die("%s: %s failed", tool.name, argv[0]);
}

/* What a file of this size would be is no result of ours. */
static struct json *load(const char *path)
{
	struct json *j = NULL;
	char *text = NULL;
	struct stat st;
	FILE *f = fopen(path, "re");

	if (!f)
		return NULL;
	if (fstat(fileno(f), &st) || st.st_size > 64 << 20)
		goto out;
	text = calloc(1, (size_t)st.st_size + 1);
	if (text && fread(text, 1, (size_t)st.st_size, f) == (size_t)st.st_size)
		j = json_parse(text);
out:
	free(text);
	fclose(f);
	if (!j)
		bench_die("%s: %s is not what a benchmark wrote", tool.name, path);
	return j;
}

struct command {
	char path[PATH_MAX];
	char text[MAX_ARGS][32];
	char *argv[MAX_ARGS];
	int argc;
};

static void arg(struct command *c, const char *name, const char *fmt, long value)
{
	if (c->argc + 3 > MAX_ARGS)
		bench_die("%s: too many arguments", tool.name);
	snprintf(c->text[c->argc], sizeof(c->text[0]), "%s", name);
	c->argv[c->argc] = c->text[c->argc];
	c->argc++;
	if (!fmt)
		return;
	snprintf(c->text[c->argc], sizeof(c->text[0]), "%s%ld", fmt, value);
	c->argv[c->argc] = c->text[c->argc];
	c->argc++;
}

/* The options that all benchmarks have. */
static void command(struct command *c, const struct bench_opts *o, const char *name)
{
	static const char *const maps[] = {
		[GDR_MAP_FLAG_DEFAULT] = "default",
		[GDR_MAP_FLAG_REQ_WC_MAPPING] = "wc",
		[GDR_MAP_FLAG_REQ_CACHE_MAPPING] = "cached",
		[GDR_MAP_FLAG_REQ_DEVICE_MAPPING] = "device",
	};

	memset(c, 0, sizeof(*c));
	sibling(c->path, sizeof(c->path), name);
	c->argv[c->argc++] = c->path;
	arg(c, "--json", NULL, 0);
	arg(c, "--device", "", o->gpu);
	arg(c, "--mapping", NULL, 0);
	arg(c, maps[o->map_flags], NULL, 0);
	arg(c, "--alloc", NULL, 0);
	arg(c, bench_mem_name(o->mem), NULL, 0);
	if (o->cpu >= 0)
		arg(c, "--cpu", "", o->cpu);
	if (o->backend) {
		arg(c, "--backend", NULL, 0);
		arg(c, o->backend, NULL, 0);
	}
}

/* Runs it, unless --in was given, and reads what it wrote. */
static struct json *result(const struct bench_opts *o, struct command *c, const char *file)
{
	char path[PATH_MAX];

	join(path, sizeof(path), o->in ? o->in : o->out, file);
	if (!o->in && !run_into(path, c->argv))
		return NULL;
	return load(path);
}

static void bw_name(char *buf, size_t len, size_t size, int threads)
{
	snprintf(buf, len, "copybw-%zu-%d.json", size, threads);
}

static void gather(struct found *f, const struct bench_opts *o)
{
	struct command c;
	char file[64];
	size_t s;
	int t;

	command(&c, o, "gdrcopy_copylat");
	arg(&c, "--size", "", (long)o->size);
	arg(&c, "--budget", "", o->budget_ms);
	f->lat = result(o, &c, "copylat.json");
	if (!f->lat && o->in)
		bench_die("%s: there is no copylat.json in %s", tool.name, o->in);
	if (!f->lat)
		bench_skip("%s: gdrcopy_copylat cannot run on this machine", tool.name);
	command(&c, o, "gdrcopy_apiperf");
	f->api = result(o, &c, "apiperf.json");
	command(&c, o, "gdrcopy_pplat");
	f->pp = result(o, &c, "pplat.json");
	for (s = 0; s < BW_SIZES; s++)
		for (t = 0; t < BW_THREADS && 1 << t <= o->threads; t++) {
			if (bw_sizes[s] > o->size)
				continue;
			command(&c, o, "gdrcopy_copybw");
			arg(&c, "--size", "", (long)bw_sizes[s]);
			arg(&c, "--threads", "", 1 << t);
			arg(&c, "--budget", NULL, 0);
			arg(&c, BW_BUDGET, NULL, 0);
			bw_name(file, sizeof(file), bw_sizes[s], 1 << t);
			f->bw[s][t] = result(o, &c, file);
		}
}

static void discard(struct found *f)
{
	size_t s, t;

	json_free(f->lat);
	json_free(f->api);
	json_free(f->pp);
	for (s = 0; s < BW_SIZES; s++)
		for (t = 0; t < BW_THREADS; t++)
			json_free(f->bw[s][t]);
}

/* Looking at what they found. */

static const struct json *rows(const struct json *run)
{
	const struct json *r = json_get(run, "results");

	return r && r->type == JSON_ARRAY ? r->child : NULL;
}

static bool is_row(const struct json *row, const char *op, const char *who, const char *mode)
{
	return !strcmp(json_text(row, "op"), op) && !strcmp(json_text(row, "who"), who) &&
	       (!mode || !strcmp(json_text(row, "mode"), mode));
}

/* P50 in ns, or 0. */
static double p50(const struct json *run, const char *op, const char *who, const char *mode,
		  size_t size)
{
	const struct json *row;

	for (row = rows(run); row; row = row->next)
		if (is_row(row, op, who, mode) && json_number(row, "size") == (double)size)
			return json_number(row, "p50_ns");
	return 0;
}

/* Plots. */

static void machine(const struct json *run, char *buf, size_t len)
{
	snprintf(buf, len, "%s | %s | driver for CUDA %s | %s backend, %s | %s",
		 json_text(run, "gpu"), json_text(run, "cpu"), json_text(run, "cuda_driver"),
		 json_text(run, "backend"), json_text(run, "mapping"), json_text(run, "date"));
}

static void by_size(struct svg_plot *p, const struct json *run, const char *op,
		    const struct look *looks, bool bandwidth, double max_size)
{
	const struct json *row;

	for (; looks->who; looks++) {
		struct svg_line *l = svg_line(p, looks->name, looks->color, looks->dash,
					      looks->width);

		for (row = rows(run); row; row = row->next) {
			double size = json_number(row, "size");
			double y = json_number(row, bandwidth ? "gb_per_s" : "p50_ns");

			if (is_row(row, op, looks->who, looks->mode) && size <= max_size)
				svg_point(l, size, y);
		}
	}
}

static void by_threads(struct svg_plot *p, const struct found *f, const char *op)
{
	static const char *const colors[] = { "#7b8794", "#2a9d8f", "#e08e1b", "#0b62c4" };
	static char names[BW_SIZES][16];
	const struct json *row;
	size_t s, t;

	for (s = 0; s < BW_SIZES; s++) {
		struct svg_line *l;

		bench_size_text(names[s], sizeof(names[s]), bw_sizes[s]);
		l = svg_line(p, names[s], colors[s], "", 2.2);
		for (t = 0; t < BW_THREADS; t++)
			for (row = rows(f->bw[s][t]); row; row = row->next)
				if (is_row(row, op, "gdrcopy", NULL))
					svg_point(l, json_number(row, "threads"),
						  json_number(row, "gb_per_s"));
	}
}

/* Every plot once into the page and once into a file. */
static void emit(const struct svg_plot *p, const struct bench_opts *o, const char *file,
		 FILE *page)
{
	char path[PATH_MAX];
	FILE *f;

	join(path, sizeof(path), o->out, file);
	f = fopen(path, "we");
	if (!f)
		bench_die("%s: %s: %s", tool.name, path, strerror(errno));
	svg_write(p, f);
	if (fclose(f))
		bench_die("%s: %s: %s", tool.name, path, strerror(errno));
	fputs("<figure>", page);
	svg_write(p, page);
	fputs("</figure>\n", page);
}

static void size_plots(const struct found *f, const struct bench_opts *o, const char *note,
		       FILE *page)
{
	static const struct {
		const char *title, *file, *op;
		const struct look *looks;
		bool bandwidth;
		double max_size;
	} plots[] = {
		{ "Write latency", "write-latency.svg", "write", write_looks, false, 1e18 },
		{ "Write bandwidth", "write-bandwidth.svg", "write", write_looks, true, 1e18 },
		{ "Small writes, each alone", "small-writes.svg", "write", alone_looks, false, 4096 },
		{ "Read latency", "read-latency.svg", "read", read_looks, false, 1e18 },
		{ "Read bandwidth", "read-bandwidth.svg", "read", read_looks, true, 1e18 },
	};
	static struct svg_plot p;
	size_t i;

	for (i = 0; i < sizeof(plots) / sizeof(plots[0]); i++) {
		p = (struct svg_plot){
			.title = plots[i].title, .note = note, .x_label = "bytes",
			.y_label = plots[i].bandwidth ? "GB/s (1e9 bytes a second)" : "time, P50",
			.x_axis = SVG_SIZE, .y_axis = plots[i].bandwidth ? SVG_PLAIN : SVG_TIME,
		};
		by_size(&p, f->lat, plots[i].op, plots[i].looks, plots[i].bandwidth,
			plots[i].max_size);
		emit(&p, o, plots[i].file, page);
	}
}

static void thread_plots(const struct found *f, const struct bench_opts *o, const char *note,
			 FILE *page)
{
	static const char *const titles[] = {
		"Write bandwidth by threads", "Read bandwidth by threads",
	};
	static const char *const files[] = { "write-threads.svg", "read-threads.svg" };
	static const char *const ops[] = { "write", "read" };
	static struct svg_plot p;
	int i;

	for (i = 0; i < 2; i++) {
		p = (struct svg_plot){
			.title = titles[i], .note = note, .x_label = "threads, one copy shared",
			.y_label = "GB/s (1e9 bytes a second)",
			.x_axis = SVG_COUNT, .y_axis = SVG_PLAIN,
		};
		by_threads(&p, f, ops[i]);
		emit(&p, o, files[i], page);
	}
}

/* Tables. */

static void cell(FILE *page, double ns)
{
	char text[32];

	fprintf(page, "<td>%s</td>", ns > 0 ? bench_ns_text(text, sizeof(text), ns) : "");
}

static void fact_table(const struct json *run, FILE *page)
{
	const struct json *m;

	fputs("<table class=\"facts\">\n", page);
	for (m = run->child; m; m = m->next) {
		if (m->type != JSON_STRING || !strcmp(m->key, "tool"))
			continue;
		fputs("<tr><th>", page);
		svg_text(m->key, page);
		fputs("</th><td>", page);
		svg_text(m->text, page);
		fputs("</td></tr>\n", page);
	}
	fputs("</table>\n", page);
}

static void latency_table(const struct found *f, FILE *page)
{
	static const char *const heads[] = {
		"write, alone", "write, back to back", "cuMemcpyHtoD", "read", "cuMemcpyDtoH",
	};
	const struct json *row;
	char text[32];
	size_t i;

	fputs("<h2>Copies, one thread, P50</h2>\n<table><tr><th>size</th>", page);
	for (i = 0; i < sizeof(heads) / sizeof(heads[0]); i++)
		fprintf(page, "<th>%s</th>", heads[i]);
	fputs("<th>write GB/s</th><th>read GB/s</th></tr>\n", page);
	for (row = rows(f->lat); row; row = row->next) {
		size_t n = (size_t)json_number(row, "size");
		double w, r;

		if (!is_row(row, "write", "gdrcopy", "back-to-back"))
			continue;
		w = json_number(row, "p50_ns");
		r = p50(f->lat, "read", "gdrcopy", NULL, n);
		fprintf(page, "<tr><th>%s</th>", bench_size_text(text, sizeof(text), n));
		cell(page, p50(f->lat, "write", "gdrcopy", "alone", n));
		cell(page, w);
		cell(page, p50(f->lat, "write", "cuMemcpy", NULL, n));
		cell(page, r);
		cell(page, p50(f->lat, "read", "cuMemcpy", NULL, n));
		fprintf(page, "<td>%.3g</td><td>%.3g</td></tr>\n", bench_gbps((double)n, w),
			bench_gbps((double)n, r));
	}
	fputs("</table>\n", page);
}

/* Rows of a run as they are: what, by whom, how, P0 and P50. missing: there is none. */
static void row_table(const struct json *run, const char *title, const char *missing, FILE *page)
{
	const struct json *row;
	char text[32];

	fprintf(page, "<h2>%s</h2>\n", title);
	if (!run) {
		fprintf(page, "<p>%s</p>\n", missing);
		return;
	}
	fputs("<table><tr><th>call</th><th>of</th><th>how</th><th>size</th><th>P0</th><th>P50</th>"
	      "<th>samples</th></tr>\n", page);
	for (row = rows(run); row; row = row->next) {
		double size = json_number(row, "size");

		fputs("<tr><th>", page);
		svg_text(json_text(row, "op"), page);
		fputs("</th><td>", page);
		svg_text(json_text(row, "who"), page);
		fputs("</td><td>", page);
		svg_text(json_text(row, "mode"), page);
		fprintf(page, "</td><td>%s</td>",
			size > 0 ? bench_size_text(text, sizeof(text), (size_t)size) : "");
		cell(page, json_number(row, "p0_ns"));
		cell(page, json_number(row, "p50_ns"));
		fprintf(page, "<td>%.0f</td></tr>\n", json_number(row, "samples"));
	}
	fputs("</table>\n", page);
}

static const char page_head[] =
	"<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
	"<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
	"<title>gdrcopy benchmarks</title>\n<style>\n"
	"body { font: 15px/1.5 system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif;\n"
	"  color: #1f2933; background: #f6f7f9; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }\n"
	"h1 { font-size: 1.7rem; margin-bottom: 0.2rem; }\n"
	"h2 { font-size: 1.2rem; margin-top: 2.2rem; }\n"
	"figure { margin: 1.2rem 0; background: #fff; border: 1px solid #d9dee4; border-radius: 6px; }\n"
	"figure svg { display: block; width: 100%; height: auto; }\n"
	"table { border-collapse: collapse; background: #fff; font-variant-numeric: tabular-nums; }\n"
	"th, td { border: 1px solid #d9dee4; padding: 0.2rem 0.6rem; text-align: right;\n"
	"  white-space: nowrap; }\n"
	"tr > th:first-child { text-align: left; font-weight: 600; }\n"
	"table.facts td { text-align: left; white-space: normal; }\n"
	".scroll { overflow-x: auto; }\n"
	"p.note { color: #52606d; max-width: 46rem; }\n"
	"</style>\n</head>\n<body>\n<h1>gdrcopy benchmarks</h1>\n";

static const char page_note[] =
	"<p class=\"note\">Lines are medians (P50) over the size of the copy; both axes are\n"
	"logarithmic. \"Back to back\" copies follow one another at once, so that each waits for\n"
	"the one before; a copy \"alone\" starts 2 us after the end of the one before. Loops are the\n"
	"benchmark's own plain ones, on the same mapping, in turns with the library. cuMemcpy copies\n"
	"the same bytes from and to pageable memory of the host.</p>\n";

static void write_page(const struct found *f, const struct bench_opts *o)
{
	char path[PATH_MAX], note[1024];
	const char *missing = o->in ?
		"No figures: the directory that was read has none of this benchmark." :
		"Not run: this machine cannot run it. The benchmark said why on standard error.";
	FILE *page;

	join(path, sizeof(path), o->out, "gdrcopy_report.html");
	page = fopen(path, "we");
	if (!page)
		bench_die("%s: %s: %s", tool.name, path, strerror(errno));
	machine(f->lat, note, sizeof(note));
	fputs(page_head, page);
	fputs("<p class=\"note\">", page);
	svg_text(note, page);
	fputs("</p>\n", page);
	fputs(page_note, page);
	size_plots(f, o, note, page);
	thread_plots(f, o, note, page);
	fputs("<div class=\"scroll\">\n", page);
	latency_table(f, page);
	row_table(f->pp, "Ping-pong with a GPU kernel", missing, page);
	row_table(f->api, "Control calls, and the calls beneath them", missing, page);
	fputs("<h2>The machine and the run</h2>\n", page);
	fact_table(f->lat, page);
	fputs("</div>\n</body>\n</html>\n", page);
	if (fclose(page))
		bench_die("%s: %s: %s", tool.name, path, strerror(errno));
	bench_progress(NULL);
	printf("%s\n", path);
}

int main(int argc, char **argv)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	struct bench_opts o = {
		.size = 16 << 20, .budget_ms = 100, .cpu = -1, .out = ".",
		.threads = cpus > 0 && cpus < 8 ? (int)cpus : 8,
	};
	static struct found f;

	bench_parse(&o, &tool, argc, argv);
	if (mkdir(o.out, 0777) && errno != EEXIST)
		bench_die("%s: %s: %s", tool.name, o.out, strerror(errno));
	gather(&f, &o);
	write_page(&f, &o);
	discard(&f);
	return BENCH_OK;
}
