/* SPDX-License-Identifier: MIT */
#include "svg.h"

#include <math.h>
#include <string.h>

#define WIDTH 860
#define HEIGHT 470
#define LEFT 78.0
#define RIGHT 690.0	/* the legend is to the right of it */
#define TOP 62.0
#define BOTTOM 414.0
#define INK "#1f2933"
#define FAINT "#52606d"
#define GRID "#d9dee4"
#define GRID_FINE "#eef1f4"

/* The plotted range of one axis, as logarithms to base; lo < hi, whole numbers. */
struct range {
	double base, lo, hi;
};

struct svg_line *svg_line(struct svg_plot *p, const char *name, const char *color,
			  const char *dash, double width)
{
	struct svg_line *l;

	if (p->n == SVG_LINES)
		return NULL;
	l = &p->lines[p->n++];
	*l = (struct svg_line){ .name = name, .color = color, .dash = dash, .width = width };
	return l;
}

void svg_point(struct svg_line *l, double x, double y)
{
	if (l && l->n < SVG_POINTS && x > 0 && y > 0) {
		l->x[l->n] = x;
		l->y[l->n++] = y;
	}
}

void svg_text(const char *text, FILE *f)
{
	for (; *text; text++) {
		switch (*text) {
		case '&':
			fputs("&amp;", f);
			break;
		case '<':
			fputs("&lt;", f);
			break;
		case '>':
			fputs("&gt;", f);
			break;
		case '"':
			fputs("&quot;", f);
			break;
		default:
			fputc(*text, f);
		}
	}
}

static struct range range_of(const struct svg_plot *p, int want_y)
{
	enum svg_axis axis = want_y ? p->y_axis : p->x_axis;
	struct range r = { axis == SVG_SIZE || axis == SVG_COUNT ? 2 : 10, INFINITY, -INFINITY };
	size_t i, k;

	for (i = 0; i < p->n; i++)
		for (k = 0; k < p->lines[i].n; k++) {
			double v = want_y ? p->lines[i].y[k] : p->lines[i].x[k];

			v = log(v) / log(r.base);
			r.lo = fmin(r.lo, v);
			r.hi = fmax(r.hi, v);
		}
	if (r.lo > r.hi)
		r.lo = r.hi = 0;
	/* The logarithm of a power of the base may come out a little beside it. */
	r.lo = floor(r.lo + 1e-9);
	r.hi = ceil(r.hi - 1e-9);
	if (r.hi <= r.lo)
		r.hi = r.lo + 1;
	return r;
}

static double place(const struct range *r, double v, double from, double to)
{
	return from + (log(v) / log(r->base) - r->lo) / (r->hi - r->lo) * (to - from);
}

static void tick_text(char *buf, size_t len, enum svg_axis axis, double v)
{
	static const char *const time_units[] = { "ns", "us", "ms", "s" };
	static const char *const size_units[] = { "", " Ki", " Mi", " Gi" };
	size_t u = 0;

	switch (axis) {
	case SVG_TIME:
		for (; v > 999.5 && u < 3; u++)
			v /= 1000;
		snprintf(buf, len, "%.4g %s", v, time_units[u]);
		break;
	case SVG_SIZE:
		for (; v >= 1024 && u < 3; u++)
			v /= 1024;
		snprintf(buf, len, "%.4g%s", v, size_units[u]);
		break;
	default:
		snprintf(buf, len, "%.4g", v);
	}
}

static void rule(FILE *f, double x1, double y1, double x2, double y2, const char *color)
{
	fprintf(f, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>\n",
		x1, y1, x2, y2, color);
}

static void label(FILE *f, double x, double y, const char *anchor, int size, const char *color,
		  const char *text)
{
	fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" font-size=\"%d\" fill=\"%s\">",
		x, y, anchor, size, color);
	svg_text(text, f);
	fputs("</text>\n", f);
}

/* Not more than eight labels fit beside each other. */
static void x_ticks(const struct svg_plot *p, const struct range *r, FILE *f)
{
	int step = (int)ceil((r->hi - r->lo) / 8), i;
	char text[32];

	if (step < 1)
		step = 1;
	for (i = (int)r->lo; i <= (int)r->hi; i++) {
		double v = pow(r->base, i), x = place(r, v, LEFT, RIGHT);
		int labelled = (i - (int)r->lo) % step == 0;

		rule(f, x, TOP, x, BOTTOM, labelled ? GRID : GRID_FINE);
		if (!labelled)
			continue;
		rule(f, x, BOTTOM, x, BOTTOM + 5, FAINT);
		tick_text(text, sizeof(text), p->x_axis, v);
		label(f, x, BOTTOM + 20, "middle", 12, INK, text);
	}
}

static void y_ticks(const struct svg_plot *p, const struct range *r, FILE *f)
{
	char text[32];
	int i, k;

	for (i = (int)r->lo; i <= (int)r->hi; i++) {
		double v = pow(r->base, i), y = place(r, v, BOTTOM, TOP);

		for (k = 2; k < 10 && i < (int)r->hi; k++) {
			double fine = place(r, v * k, BOTTOM, TOP);

			rule(f, LEFT, fine, RIGHT, fine, GRID_FINE);
			/* Few decades leave room for more labels. */
			if (r->hi - r->lo > 2 || (k != 2 && k != 5))
				continue;
			tick_text(text, sizeof(text), p->y_axis, v * k);
			label(f, LEFT - 9, fine + 4, "end", 11, FAINT, text);
		}
		rule(f, LEFT, y, RIGHT, y, GRID);
		rule(f, LEFT - 5, y, LEFT, y, FAINT);
		tick_text(text, sizeof(text), p->y_axis, v);
		label(f, LEFT - 9, y + 4, "end", 12, INK, text);
	}
}

static void curve(const struct svg_line *l, const struct range *xr, const struct range *yr,
		  FILE *f)
{
	size_t i;

	if (!l->n)
		return;
	fprintf(f, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"%.1f\" stroke-linejoin=\"round\"",
		l->color, l->width);
	if (*l->dash)
		fprintf(f, " stroke-dasharray=\"%s\"", l->dash);
	fputs(" points=\"", f);
	for (i = 0; i < l->n; i++)
		fprintf(f, "%s%.1f,%.1f", i ? " " : "", place(xr, l->x[i], LEFT, RIGHT),
			place(yr, l->y[i], BOTTOM, TOP));
	fputs("\"/>\n", f);
	for (i = 0; i < l->n; i++)
		fprintf(f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\" fill=\"%s\"/>\n",
			place(xr, l->x[i], LEFT, RIGHT), place(yr, l->y[i], BOTTOM, TOP),
			l->width, l->color);
}

static void legend(const struct svg_plot *p, FILE *f)
{
	double y = TOP + 10;
	size_t i;

	for (i = 0; i < p->n; i++) {
		const struct svg_line *l = &p->lines[i];

		if (!l->n)
			continue;
		fprintf(f, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" stroke-width=\"%.1f\"",
			RIGHT + 16, y - 4, RIGHT + 46, y - 4, l->color, l->width);
		if (*l->dash)
			fprintf(f, " stroke-dasharray=\"%s\"", l->dash);
		fputs("/>\n", f);
		label(f, RIGHT + 53, y, "start", 12, INK, l->name);
		y += 21;
	}
}

void svg_write(const struct svg_plot *p, FILE *f)
{
	struct range xr = range_of(p, 0), yr = range_of(p, 1);
	size_t i;

	fprintf(f, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" role=\"img\" "
		   "font-family=\"system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif\">\n<title>",
		WIDTH, HEIGHT);
	svg_text(p->title, f);
	fprintf(f, "</title>\n<rect width=\"%d\" height=\"%d\" fill=\"#ffffff\"/>\n", WIDTH, HEIGHT);
	label(f, LEFT, 26, "start", 17, INK, p->title);
	label(f, LEFT, 46, "start", strlen(p->note) > 125 ? 10 : 11, FAINT, p->note);
	x_ticks(p, &xr, f);
	y_ticks(p, &yr, f);
	fprintf(f, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"none\" stroke=\"%s\"/>\n",
		LEFT, TOP, RIGHT - LEFT, BOTTOM - TOP, FAINT);
	label(f, (LEFT + RIGHT) / 2, HEIGHT - 14, "middle", 13, INK, p->x_label);
	fprintf(f, "<g transform=\"translate(18 %.1f) rotate(-90)\">", (TOP + BOTTOM) / 2);
	label(f, 0, 0, "middle", 13, INK, p->y_label);
	fputs("</g>\n", f);
	/* The first line is the one that the plot is about: it goes on top. */
	for (i = p->n; i > 0; i--)
		curve(&p->lines[i - 1], &xr, &yr, f);
	legend(p, f);
	fputs("</svg>\n", f);
}
