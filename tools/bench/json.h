/* SPDX-License-Identifier: MIT */
/*
 * bench/json.h - reads the JSON that bench_out.h describes, or any other.
 */
#ifndef BENCH_JSON_H
#define BENCH_JSON_H

#include <stddef.h>

enum json_type { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

/*
 * One value. key is set in an object's members alone, text in strings alone.
 * An array's or object's values are child, child->next and so on.
 */
struct json {
	enum json_type type;
	char *key;
	char *text;
	double number;
	struct json *child, *next;
};

/* NULL when text is no JSON or memory runs out. */
struct json *json_parse(const char *text);
void json_free(struct json *j);

/* A member of an object, or NULL; j may be NULL. */
const struct json *json_get(const struct json *j, const char *key);

/* A member's string, or "". */
const char *json_text(const struct json *j, const char *key);

/* A member's number, or 0. */
double json_number(const struct json *j, const char *key);

#endif
