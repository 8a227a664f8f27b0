// SPDX-License-Identifier: MIT
/*
 * Simulated libcuda: which calls must fail, and which were made. Test code.
 *
 * A rule has the name of an exported function, with or without _v2, and the result that it must fail with. Rules
 * come from CUDA_SIM_FAIL, read at the first call, and from cuda_sim_fail(). The text form is
 *
 *	name=result[@n][,name=result[@n]...]
 *
 * where n counts the calls of that name from 1, from the time the rule was made; without @n every call fails.
 * Text that does not parse ends the process: a test whose fault was misspelt must not pass.
 */
#include "cuda_sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_SIZE 64
#define RULES 64
#define CALLED_MAX 256

pthread_mutex_t notes_lock = PTHREAD_MUTEX_INITIALIZER;

static struct rule {
	char name[NAME_SIZE];		/* empty: the slot is free */
	int result;
	unsigned int nth;		/* 0: every call */
	unsigned long calls;		/* of name since the rule was made */
} rules[RULES];

/* The functions that were called, in the order of their first calls. */
static struct {
	unsigned int n;
	const char *names[CALLED_MAX];
} called;

static void bad_rule(const char *rule)
{
	fprintf(stderr, "CUDA_SIM_FAIL: cannot use rule \"%s\": write name=result or name=result@n, with a name that this double exports\n",
		rule);
	abort();
}

/* A rule for an unknown call would have no effect, so it is an error. */
static void exported(char full[NAME_SIZE], const char *name)
{
	snprintf(full, NAME_SIZE, "%s_v2", name);
	if (!own_symbol(full))
		snprintf(full, NAME_SIZE, "%s", name);
	if (!own_symbol(full))
		bad_rule(name);
}

static void add_rule(const char *name, int result, unsigned int nth)
{
	struct rule *r = rules;

	while (r < rules + RULES && r->name[0])
		r++;
	if (r == rules + RULES)
		bad_rule(name);
	*r = (struct rule){ .result = result, .nth = nth };
	exported(r->name, name);
}

/* Returns the end of the rule. */
static const char *parse_rule(const char *text)
{
	char name[NAME_SIZE];
	unsigned int nth = 0;
	int result, end = 0, n = sscanf(text, "%63[^=,]=%i%n@%u%n", name, &result, &end, &nth, &end);

	if (n < 2 || !result || (n == 3 && !nth) || (text[end] && text[end] != ','))
		bad_rule(text);
	add_rule(name, result, nth);
	return text + end;
}

static void load(void)
{
	static bool loaded;
	const char *text = loaded ? NULL : getenv("CUDA_SIM_FAIL");

	loaded = true;
	while (text && *text) {
		text = parse_rule(text);
		text += *text == ',';
	}
}

static void note_call(const char *name)
{
	unsigned int i = 0;

	while (i < called.n && strcmp(called.names[i], name))
		i++;
	if (i == called.n && i < CALLED_MAX)
		called.names[called.n++] = name;
}

/* Each entry point comes here. Returns 0, or the result that the call must fail with. */
int fault(const char *name)
{
	int result = 0;

	pthread_mutex_lock(&notes_lock);
	load();
	note_call(name);
	for (struct rule *r = rules; r < rules + RULES; r++)
		if (!strcmp(r->name, name) && (++r->calls == r->nth || !r->nth) && !result)
			result = r->result;
	pthread_mutex_unlock(&notes_lock);
	return result;
}

/* Makes a rule. nth 0 is every call. result 0 drops every rule of the name. */
SIM_API void cuda_sim_fail(const char *name, int result, int nth)
{
	char full[NAME_SIZE];

	exported(full, name);
	pthread_mutex_lock(&notes_lock);
	load();
	if (nth < 0)
		bad_rule(name);
	if (result)
		add_rule(full, result, (unsigned int)nth);
	for (struct rule *r = rules; !result && r < rules + RULES; r++)
		if (!strcmp(r->name, full))
			r->name[0] = '\0';
	pthread_mutex_unlock(&notes_lock);
}

/* The calls of name since its rule was made; 0 if it has none. */
SIM_API unsigned long cuda_sim_calls(const char *name)
{
	unsigned long calls = 0;
	char full[NAME_SIZE];

	exported(full, name);
	pthread_mutex_lock(&notes_lock);
	for (struct rule *r = rules; r < rules + RULES; r++)
		if (!strcmp(r->name, full))
			calls = r->calls;
	pthread_mutex_unlock(&notes_lock);
	return calls;
}

/*
 * Writes the names of the functions that were called since this was asked last, with a
 * space after each, and returns how many there are. A name that does not fit is left out.
 */
SIM_API unsigned int cuda_sim_called(char *names, size_t size)
{
	unsigned int n;

	pthread_mutex_lock(&notes_lock);
	n = called.n;
	if (size)
		*names = '\0';
	for (unsigned int i = 0; i < n; i++)
		if (strlen(names) + strlen(called.names[i]) + 2 <= size)
			strcat(strcat(names, called.names[i]), " ");
	called.n = 0;
	pthread_mutex_unlock(&notes_lock);
	return n;
}
