/* SPDX-License-Identifier: MIT */
#include "json.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DEPTH 32

/* p is where to read on; it becomes NULL at the first mistake. */
struct reader {
	const char *p;
	int depth;
};

static struct json *value(struct reader *r);

static void blank(struct reader *r)
{
	while (r->p && *r->p && strchr(" \t\r\n", *r->p))
		r->p++;
}

/* Takes c, or fails. */
static void take(struct reader *r, char c)
{
	blank(r);
	if (r->p && *r->p == c)
		r->p++;
	else
		r->p = NULL;
}

static int peek(struct reader *r)
{
	blank(r);
	return r->p ? *r->p : 0;
}

/* Four hexadecimal digits; only those of a byte are written by our tools. */
static char escaped_code(struct reader *r)
{
	char digits[5] = "";
	int i;

	for (i = 0; i < 4; i++) {
		if (!isxdigit((unsigned char)r->p[1 + i])) {
			r->p = NULL;
			return 0;
		}
		digits[i] = r->p[1 + i];
	}
	r->p += 4;
	i = (int)strtol(digits, NULL, 16);
	return i < 0x80 ? (char)i : '?';
}

static char escape(struct reader *r)
{
	static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
	const char *at;

	if (*r->p == 'u')
		return escaped_code(r);
	at = *r->p ? strchr(from, *r->p) : NULL;
	if (!at) {
		r->p = NULL;
		return 0;
	}
	return to[at - from];
}

static char *string(struct reader *r)
{
	char *s = NULL, *out;

	take(r, '"');
	if (!r->p)
		return NULL;
	s = out = calloc(1, strlen(r->p) + 1);
	if (!s)
		r->p = NULL;
	while (r->p && *r->p != '"') {
		char c = *r->p;

		if (c == '\\') {
			r->p++;
			c = escape(r);
		}
		if (!c)
			r->p = NULL;
		if (!r->p)
			break;
		*out++ = c;
		r->p++;
	}
	if (!r->p) {
		free(s);
		return NULL;
	}
	*out = '\0';
	r->p++;
	return s;
}

/* The values of an array or object up to its closing bracket. */
static void values(struct reader *r, struct json *j, char close)
{
	struct json **end = &j->child;

	r->p++;
	if (peek(r) == close) {
		r->p++;
		return;
	}
	while (r->p) {
		char *key = NULL;

		if (close == '}') {
			key = string(r);
			take(r, ':');
		}
		*end = value(r);
		if (!*end) {
			free(key);
			return;
		}
		(*end)->key = key;
		end = &(*end)->next;
		if (peek(r) != ',')
			break;
		r->p++;
	}
	take(r, close);
}

static void word(struct reader *r, struct json *j)
{
	static const struct {
		const char *text;
		enum json_type type;
		double number;
	} words[] = {
		{ "true", JSON_BOOL, 1 }, { "false", JSON_BOOL, 0 }, { "null", JSON_NULL, 0 },
	};
	size_t i, n;

	for (i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		n = strlen(words[i].text);
		if (strncmp(r->p, words[i].text, n))
			continue;
		j->type = words[i].type;
		j->number = words[i].number;
		r->p += n;
		return;
	}
	r->p = NULL;
}

static void number(struct reader *r, struct json *j)
{
	char *end;

	j->type = JSON_NUMBER;
	j->number = strtod(r->p, &end);
	r->p = end == r->p ? NULL : end;
}

static struct json *value(struct reader *r)
{
	struct json *j = calloc(1, sizeof(*j));
	int c = peek(r);

	if (!j || ++r->depth > MAX_DEPTH)
		r->p = NULL;
	if (!r->p)
		goto out;
	if (c == '{' || c == '[') {
		j->type = c == '{' ? JSON_OBJECT : JSON_ARRAY;
		values(r, j, c == '{' ? '}' : ']');
	} else if (c == '"') {
		j->type = JSON_STRING;
		j->text = string(r);
	} else if (c == '-' || isdigit(c)) {
		number(r, j);
	} else {
		word(r, j);
	}
	r->depth--;
out:
	if (!r->p) {
		json_free(j);
		return NULL;
	}
	return j;
}

struct json *json_parse(const char *text)
{
	struct reader r = { .p = text };
	struct json *j = value(&r);

	if (j && peek(&r)) {
		json_free(j);
		return NULL;
	}
	return j;
}

void json_free(struct json *j)
{
	while (j) {
		struct json *next = j->next;

		json_free(j->child);
		free(j->key);
		free(j->text);
		free(j);
		j = next;
	}
}

const struct json *json_get(const struct json *j, const char *key)
{
	if (!j || j->type != JSON_OBJECT)
		return NULL;
	for (j = j->child; j; j = j->next)
		if (!strcmp(j->key, key))
			return j;
	return NULL;
}

const char *json_text(const struct json *j, const char *key)
{
	const struct json *m = json_get(j, key);

	return m && m->type == JSON_STRING ? m->text : "";
}

double json_number(const struct json *j, const char *key)
{
	const struct json *m = json_get(j, key);

	return m && m->type == JSON_NUMBER ? m->number : 0;
}
