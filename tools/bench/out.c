/* SPDX-License-Identifier: MIT */
#include "out.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

/* The CPU's name from /proc/cpuinfo; architectures differ in the key. */
static void cpu_name(char *buf, size_t len)
{
	FILE *f = fopen("/proc/cpuinfo", "re");
	char line[256];

	snprintf(buf, len, "unknown CPU");
	if (!f)
		return;
	while (fgets(line, sizeof(line), f)) {
		char *colon = strchr(line, ':');

		if (!colon || (strncmp(line, "model name", 10) && strncmp(line, "cpu\t", 4)))
			continue;
		colon += strspn(colon, ": \t");
		colon[strcspn(colon, "\n")] = '\0';
		snprintf(buf, len, "%s", colon);
		break;
	}
	fclose(f);
}

/* The version of NVIDIA's kernel driver; none on simulated ones. */
static void driver_version(struct bench_result *r)
{
	FILE *f = fopen("/sys/module/nvidia/version", "re");
	char version[64];

	if (!f)
		return;
	if (fgets(version, sizeof(version), f)) {
		version[strcspn(version, "\n")] = '\0';
		bench_fact(r, "driver", "%s", version);
	}
	fclose(f);
}

void bench_result_init(struct bench_result *r, const char *tool)
{
	time_t now = time(NULL);
	struct utsname u;
	char cpu[128], date[32];
	struct tm tm;

	*r = (struct bench_result){ .tool = tool };
	gmtime_r(&now, &tm);
	strftime(date, sizeof(date), "%Y-%m-%d %H:%M UTC", &tm);
	bench_fact(r, "date", "%s", date);
	cpu_name(cpu, sizeof(cpu));
	bench_fact(r, "cpu", "%s, %ld online", cpu, sysconf(_SC_NPROCESSORS_ONLN));
	if (!uname(&u))
		bench_fact(r, "kernel", "%s %s %s", u.sysname, u.release, u.machine);
	driver_version(r);
}

void bench_result_free(struct bench_result *r)
{
	free(r->rows);
	*r = (struct bench_result){ 0 };
}

void bench_fact(struct bench_result *r, const char *key, const char *fmt, ...)
{
	struct bench_fact *fact;
	va_list ap;

	if (r->nfacts == sizeof(r->facts) / sizeof(r->facts[0]))
		bench_die("too many facts; no room for %s", key);
	fact = &r->facts[r->nfacts++];
	fact->key = key;
	va_start(ap, fmt);
	vsnprintf(fact->value, sizeof(fact->value), fmt, ap);
	va_end(ap);
}

void bench_row(struct bench_result *r, const struct bench_row *row)
{
	if (r->nrows == r->cap) {
		size_t cap = r->cap ? 2 * r->cap : 64;
		struct bench_row *rows = realloc(r->rows, cap * sizeof(*rows));

		if (!rows)
			bench_die("out of memory for %zu figures", cap);
		r->rows = rows;
		r->cap = cap;
	}
	r->rows[r->nrows++] = *row;
}

const struct bench_row *bench_find(const struct bench_result *r, const char *op,
				   const char *who, const char *mode, size_t size)
{
	size_t i;

	for (i = 0; i < r->nrows; i++) {
		const struct bench_row *row = &r->rows[i];

		if (row->size == size && !strcmp(row->op, op) && !strcmp(row->who, who) &&
		    (!mode || !strcmp(row->mode, mode)))
			return row;
	}
	return NULL;
}

double bench_gbps(double bytes, double ns)
{
	return ns > 0 ? bytes / ns : 0;
}

void bench_json_string(FILE *f, const char *s)
{
	fputc('"', f);
	for (; *s; s++) {
		unsigned char c = (unsigned char)*s;

		if (c == '"' || c == '\\')
			fprintf(f, "\\%c", c);
		else if (c < 0x20)
			fprintf(f, "\\u%04x", c);
		else
			fputc(c, f);
	}
	fputc('"', f);
}

/* `, "key": "value"`; first leaves the comma out. */
static void json_member(FILE *f, bool first, const char *key, const char *value)
{
	if (!first)
		fputs(", ", f);
	bench_json_string(f, key);
	fputs(": ", f);
	bench_json_string(f, value);
}

static double row_gbps(const struct bench_row *row)
{
	return bench_gbps((double)row->size, row->p50);
}

static void json_row(FILE *f, const struct bench_row *row)
{
	fputs("{", f);
	json_member(f, true, "op", row->op);
	json_member(f, false, "who", row->who);
	json_member(f, false, "mode", row->mode);
	fprintf(f, ", \"size\": %zu, \"threads\": %d, \"batch\": %u, \"samples\": %zu",
		row->size, row->threads, row->batch, row->samples);
	fprintf(f, ", \"p0_ns\": %.2f, \"p50_ns\": %.2f", row->p0, row->p50);
	if (row->moves)
		fprintf(f, ", \"gb_per_s\": %.4f", row_gbps(row));
	fputs("}", f);
}

void bench_json(const struct bench_result *r, FILE *f)
{
	size_t i;

	fputs("{", f);
	json_member(f, true, "tool", r->tool);
	for (i = 0; i < r->nfacts; i++) {
		fputs(",\n ", f);
		json_member(f, true, r->facts[i].key, r->facts[i].value);
	}
	fputs(",\n \"results\": [", f);
	for (i = 0; i < r->nrows; i++) {
		fputs(i ? ",\n  " : "\n  ", f);
		json_row(f, &r->rows[i]);
	}
	fputs("]}\n", f);
}

/* A text with its comma; in quotes where it has a comma or a quote of its own. */
static void csv_text(FILE *f, const char *s)
{
	if (!strpbrk(s, ",\"\n")) {
		fprintf(f, "%s,", s);
		return;
	}
	fputc('"', f);
	for (; *s; s++) {
		if (*s == '"')
			fputc('"', f);
		fputc(*s, f);
	}
	fputs("\",", f);
}

void bench_csv(const struct bench_result *r, FILE *f)
{
	size_t i;

	fputs("tool,op,who,mode,size,threads,batch,samples,p0_ns,p50_ns,gb_per_s\n", f);
	for (i = 0; i < r->nrows; i++) {
		const struct bench_row *row = &r->rows[i];

		csv_text(f, r->tool);
		csv_text(f, row->op);
		csv_text(f, row->who);
		csv_text(f, row->mode);
		fprintf(f, "%zu,%d,%u,%zu,%.2f,%.2f,", row->size, row->threads, row->batch,
			row->samples, row->p0, row->p50);
		if (row->moves)
			fprintf(f, "%.4f", row_gbps(row));
		fputc('\n', f);
	}
}

void bench_print(const struct bench_result *r, const struct bench_opts *o,
		 void (*text)(const struct bench_result *, const struct bench_opts *))
{
	if (o->given[OPT_JSON])
		bench_json(r, stdout);
	else if (o->given[OPT_CSV])
		bench_csv(r, stdout);
	else
		text(r, o);
	bench_flush_stdout(r->tool);
}

void bench_facts(const struct bench_result *r, FILE *f)
{
	size_t i;

	for (i = 0; i < r->nfacts; i++)
		fprintf(f, "# %s: %s\n", r->facts[i].key, r->facts[i].value);
}

const char *bench_size_text(char *buf, size_t len, size_t size)
{
	if (size >= 1 << 20 && size % (1 << 20) == 0)
		snprintf(buf, len, "%zu MiB", size >> 20);
	else if (size >= 1 << 10 && size % (1 << 10) == 0)
		snprintf(buf, len, "%zu KiB", size >> 10);
	else
		snprintf(buf, len, "%zu B", size);
	return buf;
}

const char *bench_ns_text(char *buf, size_t len, double ns)
{
	static const char *const units[] = { "ns", "us", "ms", "s" };
	size_t u = 0;
	int digits;

	/* The limits are where printf would round up to the next power of ten. */
	while (ns >= 999.5 && u < 3) {
		ns /= 1000;
		u++;
	}
	digits = ns >= 99.95 ? 0 : ns >= 9.995 ? 1 : 2;
	snprintf(buf, len, "%.*f %s", digits, ns, units[u]);
	return buf;
}
