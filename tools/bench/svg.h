/* SPDX-License-Identifier: MIT */
/*
 * bench/svg.h - line plots with two logarithmic axes, as SVG.
 */
#ifndef BENCH_SVG_H
#define BENCH_SVG_H

#include <stddef.h>
#include <stdio.h>

#define SVG_POINTS 64
#define SVG_LINES 12

enum svg_axis {
	SVG_SIZE,	/* bytes, ticks at powers of two */
	SVG_COUNT,	/* a count, ticks at powers of two */
	SVG_TIME,	/* ns, ticks at powers of ten, in units of time */
	SVG_PLAIN	/* a number, ticks at powers of ten */
};

/* Points in the order of x; those that are not above 0 are left out. */
struct svg_line {
	const char *name;	/* for the legend */
	const char *color;
	const char *dash;	/* "" for a whole line */
	double width;
	double x[SVG_POINTS], y[SVG_POINTS];
	size_t n;
};

struct svg_plot {
	const char *title;
	const char *note;	/* under the title: machine and date */
	const char *x_label, *y_label;
	enum svg_axis x_axis, y_axis;
	struct svg_line lines[SVG_LINES];
	size_t n;
};

/* A new line without points, or NULL when the plot is full. */
struct svg_line *svg_line(struct svg_plot *p, const char *name, const char *color,
			  const char *dash, double width);
void svg_point(struct svg_line *l, double x, double y);

/* Writes one <svg> element, good inside of HTML and as a file of its own. */
void svg_write(const struct svg_plot *p, FILE *f);

/* Writes text with what is special to XML escaped. */
void svg_text(const char *text, FILE *f);

#endif
