/* SPDX-License-Identifier: MIT */
/*
 * histogram.h - latencies: counted without losing any, printed, drawn as SVG.
 */
#ifndef HISTOGRAM_H
#define HISTOGRAM_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct histogram {
	int64_t *ns;	/* in the order of time; sorted by histogram_sort */
	size_t n;
	size_t capacity;
};

/* Returns 0 or ENOMEM; the memory is touched, so that adding faults no page. */
int histogram_init(struct histogram *h, size_t capacity);
void histogram_free(struct histogram *h);
/* There must be room. */
void histogram_add(struct histogram *h, int64_t ns);
void histogram_sort(struct histogram *h);
/* The value that share of all (0 to 1) do not exceed; h is sorted and not empty. */
int64_t histogram_at(const struct histogram *h, double share);
/* Bars on logarithmic axes, and a line at the deadline. h is sorted and not empty. */
void histogram_svg(const struct histogram *h, const char *title, int64_t deadline_ns, FILE *f);

#endif
