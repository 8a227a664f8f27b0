// SPDX-License-Identifier: MIT
#include "histogram.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The picture: time from 1 us to 10 s, ten bars for each factor of ten. */
enum { WIDTH = 860, HEIGHT = 400, LEFT = 70, RIGHT = 30, TOP = 50, BOTTOM = 50, DECADES = 7, PER_DECADE = 10 };
enum { BARS = DECADES * PER_DECADE };
#define FIRST_NS 1000.0

int histogram_init(struct histogram *h, size_t capacity)
{
	h->n = 0;
	h->capacity = capacity;
	h->ns = malloc(capacity * sizeof(*h->ns));
	if (!h->ns)
		return ENOMEM;
	memset(h->ns, 1, capacity * sizeof(*h->ns));
	return 0;
}

void histogram_free(struct histogram *h)
{
	free(h->ns);
}

void histogram_add(struct histogram *h, int64_t ns)
{
	h->ns[h->n++] = ns;
}

static int by_value(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return (x > y) - (x < y);
}

void histogram_sort(struct histogram *h)
{
	qsort(h->ns, h->n, sizeof(*h->ns), by_value);
}

int64_t histogram_at(const struct histogram *h, double share)
{
	size_t i = (size_t)ceil(share * (double)h->n);

	return h->ns[i ? i - 1 : 0];
}

/* The bar of a time; the first and the last have what is past the ends. */
static int bar_of(int64_t ns)
{
	double bar = ns > 0 ? log10((double)ns / FIRST_NS) * PER_DECADE : 0;

	return bar < 0 ? 0 : bar >= BARS ? BARS - 1 : (int)bar;
}

static double x_of(double bar)
{
	return LEFT + bar * (WIDTH - LEFT - RIGHT) / BARS;
}

/* A count of 1 is a bar that can be seen. */
static double y_of(size_t count, double top)
{
	double share = count ? (log10((double)count) + 0.3) / (top + 0.3) : 0;

	return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM);
}

static void line(FILE *f, double x1, double y1, double x2, double y2, const char *color)
{
	fprintf(f, "<line x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f' stroke='%s'/>\n", x1, y1, x2, y2, color);
}

static void axes(FILE *f, double top)
{
	static const char *const times[] = { "1 us", "10 us", "100 us", "1 ms", "10 ms", "100 ms", "1 s", "10 s" };

	for (int i = 0; i <= DECADES; i++) {
		double x = x_of(i * PER_DECADE);

		line(f, x, HEIGHT - BOTTOM, x, TOP, "#ddd");
		fprintf(f, "<text x='%.1f' y='%d' text-anchor='middle'>%s</text>\n", x, HEIGHT - BOTTOM + 18, times[i]);
	}
	for (int i = 0; i <= (int)top; i++) {
		double y = y_of((size_t)(pow(10, i) + 0.5), top);

		line(f, LEFT, y, WIDTH - RIGHT, y, "#ddd");
		fprintf(f, "<text x='%d' y='%.1f' text-anchor='end'>%.0f</text>\n", LEFT - 6, y + 4, pow(10, i));
	}
	line(f, LEFT, HEIGHT - BOTTOM, WIDTH - RIGHT, HEIGHT - BOTTOM, "#333");
	fprintf(f, "<text x='%d' y='%d' text-anchor='middle'>from when a frame is due until it is in GPU memory</text>\n",
		(LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10);
	fprintf(f, "<text x='16' y='%d' transform='rotate(-90 16 %d)' text-anchor='middle'>frames</text>\n",
		(TOP + HEIGHT - BOTTOM) / 2, (TOP + HEIGHT - BOTTOM) / 2);
}

void histogram_svg(const struct histogram *h, const char *title, int64_t deadline_ns, FILE *f)
{
	size_t count[BARS] = { 0 }, most = 1;
	double top, x;

	for (size_t i = 0; i < h->n; i++) {
		size_t *c = &count[bar_of(h->ns[i])];

		if (++*c > most)
			most = *c;
	}
	top = ceil(log10((double)most));
	if (top < 1)
		top = 1;
	fprintf(f, "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %d %d' font-family='sans-serif' font-size='12'>\n"
		"<rect width='100%%' height='100%%' fill='white'/>\n<text x='%d' y='24' font-size='15'>%s</text>\n",
		WIDTH, HEIGHT, LEFT, title);
	axes(f, top);
	for (int i = 0; i < BARS; i++)
		if (count[i])
			fprintf(f, "<rect x='%.1f' y='%.1f' width='%.1f' height='%.1f' fill='#2a6fb0'><title>%zu</title></rect>\n",
				x_of(i) + 0.5, y_of(count[i], top), x_of(1) - x_of(0) - 1,
				HEIGHT - BOTTOM - y_of(count[i], top), count[i]);
	x = x_of(log10((double)deadline_ns / FIRST_NS) * PER_DECADE);
	line(f, x, HEIGHT - BOTTOM, x, TOP, "#c0392b");
	fprintf(f, "<text x='%.1f' y='%d' fill='#c0392b'>deadline</text>\n</svg>\n", x + 4, TOP + 12);
}
