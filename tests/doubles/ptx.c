// SPDX-License-Identifier: MIT
#define _GNU_SOURCE 1
#include "ptx.h"

#include <ctype.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MAX_NAMES 64
#define MAX_CODE 128
#define NAME 24
#define SLICE 64	/* instructions of one thread before the next one's turn */

#define MIXED (-1)

/* Operands: d, destination; r, register or number; p, predicate; m, [register]; x, [parameter]; l, label. */
static const struct op {
	const char *name;
	const char *operands;
	int bits;	/* of d and r; mixed: see bits_at */
} ops[] = {
#define OPS(X) \
	X(LD_PARAM32, "ld.param.u32", "dx", 32) X(LD_PARAM64, "ld.param.u64", "dx", 64) \
	X(CVTA, "cvta.to.global.u64", "dr", 64) \
	X(MOV32, "mov.u32", "dr", 32) X(MOV64, "mov.u64", "dr", 64) \
	X(SETP_EQ32, "setp.eq.u32", "prr", 32) X(SETP_NE32, "setp.ne.u32", "prr", 32) \
	X(SETP_GT32, "setp.gt.u32", "prr", 32) X(SETP_GE32, "setp.ge.u32", "prr", 32) \
	X(SETP_LT32, "setp.lt.u32", "prr", 32) X(SETP_LT64, "setp.lt.u64", "prr", 64) \
	X(SETP_GE64, "setp.ge.u64", "prr", 64) \
	X(AND_PRED, "and.pred", "ppp", 0) \
	X(ADD32, "add.u32", "drr", 32) X(SUB64, "sub.u64", "drr", 64) X(MUL32, "mul.lo.u32", "drr", 32) \
	X(XOR32, "xor.b32", "drr", 32) X(OR32, "or.b32", "drr", 32) X(AND32, "and.b32", "drr", 32) \
	X(ADD64, "add.u64", "drr", 64) X(SHR64, "shr.u64", "drr", MIXED) X(CVT32, "cvt.u32.u64", "dr", MIXED) \
	X(MUL_WIDE, "mul.wide.u32", "drr", MIXED) \
	X(MAD32, "mad.lo.u32", "drrr", 32) X(MAD_WIDE, "mad.wide.u32", "drrr", MIXED) \
	X(LD32, "ld.volatile.global.u32", "dm", 32) X(ST32, "st.volatile.global.u32", "mr", 32) \
	X(PLAIN_LD32, "ld.global.u32", "dm", 32) X(PLAIN_LD64, "ld.global.u64", "dm", 64) \
	X(PLAIN_ST32, "st.global.u32", "mr", 32) X(PLAIN_ST64, "st.global.u64", "mr", 64) \
	X(ACQUIRE32, "ld.acquire.sys.global.u32", "dm", 32) X(RELAXED_LD64, "ld.relaxed.sys.global.u64", "dm", 64) \
	X(RELEASE32, "st.release.sys.global.u32", "mr", 32) X(RELEASE64, "st.release.sys.global.u64", "mr", 64) \
	X(RELAXED_ST32, "st.relaxed.sys.global.u32", "mr", 32) X(RELAXED_ST64, "st.relaxed.sys.global.u64", "mr", 64) \
	X(FENCE, "fence.acq_rel.sys", "", 0) \
	X(MEMBAR, "membar.sys", "", 0) X(BAR_OR, "bar.red.or.pred", "prp", 32) \
	X(BRA, "bra", "l", 0) X(RET, "ret", "", 0)
#define ROW(id, name, operands, bits) { name, operands, bits },
	OPS(ROW)
};
#define ID(id, name, operands, bits) id,
enum { OPS(ID) NOPS };

/* Special registers; a lane's registers begin with these. */
enum { TID, CTAID, NTID, NCTAID, CLOCK, SPECIALS };
static const struct { const char *name; int bits; } specials[] = {
	{ "%tid.x", 32 }, { "%ctaid.x", 32 }, { "%ntid.x", 32 }, { "%nctaid.x", 32 }, { "%clock64", 64 },
};

struct name {
	char text[NAME];
	int bits;	/* of a register, 1: predicate; of a parameter; of a label where it leads */
};

struct value {
	bool number;
	uint64_t v;	/* the number, or the index of a register, a parameter or a label */
	uint64_t plus;	/* of an address: bytes after the register's */
};

struct code {
	int op;
	int guard;	/* register, or -1 */
	bool unless;
	struct value v[4];
};

struct ptx {
	struct name regs[MAX_NAMES], params[MAX_NAMES], labels[MAX_NAMES];
	unsigned int nregs, nparams, nlabels, ncode;
	struct code code[MAX_CODE];
	char *said;
};

static bool bad(struct ptx *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static bool bad(struct ptx *p, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(p->said, 128, fmt, ap);
	va_end(ap);
	return false;
}

static int find(const struct name *names, unsigned int n, const char *text)
{
	for (unsigned int i = 0; i < n; i++)
		if (!strcmp(names[i].text, text))
			return (int)i;
	return -1;
}

static bool add(struct ptx *p, struct name *names, unsigned int *n, const char *text, int bits)
{
	if (*n == MAX_NAMES || strlen(text) >= NAME || !*text)
		return bad(p, "too many names, or '%s' is too long", text);
	if (find(names, *n, text) >= 0)
		return bad(p, "'%s' is there twice", text);
	strcpy(names[*n].text, text);
	names[(*n)++].bits = bits;
	return true;
}

/* The next word of *s up to one of those that end it, without blanks around it. */
static char *word(char **s, const char *ends)
{
	char *start, *end;

	while (isspace((unsigned char)**s))
		(*s)++;
	start = *s;
	end = start + strcspn(start, ends);
	*s = *end ? end + 1 : end;
	*end = 0;
	while (end > start && isspace((unsigned char)end[-1]))
		*--end = 0;
	return start;
}

static int bits_of(const char *type)
{
	if (!strcmp(type, "pred"))
		return 1;
	return strlen(type) == 3 && strchr("bu", type[0]) ? atoi(type + 1) : -1;
}

/* ".param .u64 a, .param .u32 b" */
static bool read_params(struct ptx *p, char *s)
{
	while (*s) {
		char *one = word(&s, ","), *type;

		if (strcmp(word(&one, " "), ".param") || *one != '.')
			return bad(p, "no parameter: %s", one);
		one++;
		type = word(&one, " ");
		if (!add(p, p->params, &p->nparams, word(&one, ""), bits_of(type)))
			return false;
	}
	return true;
}

/* "%r<3>": %r0, %r1 and %r2 */
static bool add_regs(struct ptx *p, char *text, int bits)
{
	char *count = strchr(text, '<'), name[2 * NAME];
	int n = count ? atoi(count + 1) : 0;

	if (!count)
		return add(p, p->regs, &p->nregs, text, bits);
	*count = 0;
	if (n < 1 || strlen(text) >= NAME)
		return bad(p, "no registers: '%s'", text);
	for (int i = 0; i < n; i++) {
		snprintf(name, sizeof(name), "%s%d", text, i);
		if (!add(p, p->regs, &p->nregs, name, bits))
			return false;
	}
	return true;
}

/* ".reg .b32 a, b" */
static bool read_regs(struct ptx *p, char *s)
{
	int bits = bits_of(word(&s, " \t"));

	if (bits != 1 && bits != 32 && bits != 64)
		return bad(p, "registers of no known type: %s", s);
	while (*s)
		if (!add_regs(p, word(&s, ","), bits))
			return false;
	return true;
}

static bool reg(struct ptx *p, const char *text, int bits, struct value *v)
{
	int i = find(p->regs, p->nregs, text);

	if (i < 0)
		return bad(p, "no register '%s'", text);
	if (p->regs[i].bits != bits)
		return bad(p, "'%s' has %d bits, not %d", text, p->regs[i].bits, bits);
	v->v = (uint64_t)i;
	return true;
}

static bool operand(struct ptx *p, char kind, char *text, int bits, struct value *v)
{
	char *end = text + strlen(text);
	int i;

	switch (kind) {
	case 'm':
	case 'x':
		if (*text != '[' || end[-1] != ']')
			return bad(p, "'%s' is no address", text);
		end[-1] = 0;
		if (kind == 'm') {
			char *plus = strchr(text, '+');

			if (plus)
				*plus++ = 0;
			v->plus = plus ? strtoull(plus, &end, 10) : 0;
			return plus && *end ? bad(p, "'%s' is no offset", plus) : reg(p, text + 1, 64, v);
		}
		i = find(p->params, p->nparams, text + 1);
		if (i < 0 || p->params[i].bits != bits)
			return bad(p, "no parameter of %d bits: '%s'", bits, text + 1);
		v->v = (uint64_t)i;
		return true;
	case 'l':	/* its number, when all are known */
		i = find(p->labels, p->nlabels, text);
		if (i < 0 && !add(p, p->labels, &p->nlabels, text, -1))
			return false;
		v->v = i < 0 ? p->nlabels - 1 : (uint64_t)i;
		return true;
	case 'p':
		return reg(p, text, 1, v);
	case 'r':
		if (isdigit((unsigned char)*text) || *text == '-') {
			v->number = true;
			v->v = (uint64_t)strtoll(text, &end, 0);
			return *end ? bad(p, "'%s' is no number", text) : true;
		}
	}
	return reg(p, text, bits, v);
}

/* The width of an instruction's operand i. */
static int bits_at(int op, int i)
{
	switch (op) {
	case MAD_WIDE: return i == 0 || i == 3 ? 64 : 32;
	case MUL_WIDE: return i == 0 ? 64 : 32;
	case SHR64: return i == 2 ? 32 : 64;
	case CVT32: return i == 0 ? 32 : 64;
	}
	return ops[op].bits;
}

static bool read_code(struct ptx *p, char *s)
{
	struct code *c = &p->code[p->ncode];
	struct value guard;
	char *name;

	if (p->ncode == MAX_CODE)
		return bad(p, "it is too long");
	*c = (struct code){ .guard = -1 };
	if (*s == '@') {
		c->unless = s[1] == '!';
		s += 1 + c->unless;
		if (!reg(p, word(&s, " "), 1, &guard))
			return false;
		c->guard = (int)guard.v;
	}
	name = word(&s, " ");
	for (c->op = 0; c->op < NOPS && strcmp(name, ops[c->op].name); c->op++)
		;
	if (c->op == NOPS)
		return bad(p, "no instruction '%s'", name);
	for (int i = 0; ops[c->op].operands[i]; i++) {
		if (!*s)
			return bad(p, "%s needs more operands", name);
		if (!operand(p, ops[c->op].operands[i], word(&s, ","), bits_at(c->op, i), &c->v[i]))
			return false;
	}
	if (*s)
		return bad(p, "%s has more operands: %s", name, s);
	p->ncode++;
	return true;
}

static bool label(struct ptx *p, const char *text)
{
	int i = find(p->labels, p->nlabels, text);

	if (i < 0)
		return add(p, p->labels, &p->nlabels, text, (int)p->ncode);
	if (p->labels[i].bits >= 0)
		return bad(p, "the label '%s' is there twice", text);
	p->labels[i].bits = (int)p->ncode;
	return true;
}

/* "{ STATEMENT; LABEL: STATEMENT; ... }" */
static bool read_body(struct ptx *p, char *s)
{
	while (true) {
		char *colon, *one;

		s += strspn(s, " \t\n");
		if (!*s)
			break;
		one = word(&s, ";");
		while ((colon = strchr(one, ':'))) {
			*colon = 0;
			if (!label(p, one))
				return false;
			one = colon + 1;
			one += strspn(one, " \t\n");
		}
		if (!strncmp(one, ".reg .", 6) ? !read_regs(p, one + 6) : !read_code(p, one))
			return false;
	}
	for (unsigned int i = 0; i < p->nlabels; i++)
		if (p->labels[i].bits < 0)
			return bad(p, "no label '%s'", p->labels[i].text);
	return true;
}

static bool read_text(struct ptx *p, char *s, const char *entry)
{
	char *open, *close, *name;

	for (unsigned int i = 0; i < SPECIALS; i++)
		if (!add(p, p->regs, &p->nregs, specials[i].name, specials[i].bits))
			return false;
	if (strncmp(s, ".version ", 9) || !strstr(s, "\n.target sm_") || !strstr(s, "\n.address_size 64\n"))
		return bad(p, "no version, target and address size");
	s = strstr(s, "\n.visible .entry ");
	if (!s)
		return bad(p, "no entry");
	s += strlen("\n.visible .entry ");
	name = word(&s, "(");
	if (strcmp(name, entry))
		return bad(p, "no kernel '%s'", entry);
	open = strchr(s, '{');
	close = strrchr(s, '}');
	if (!open || !close)
		return bad(p, "no body");
	*close = 0;
	return read_params(p, word(&s, ")")) && read_body(p, open + 1);
}

struct ptx *ptx_load(const char *text, const char *entry, char said[128])
{
	struct ptx *p = calloc(1, sizeof(*p));
	char *copy = strdup(text);
	bool ok;

	if (!p || !copy)
		abort();
	p->said = said;
	ok = read_text(p, copy, entry);
	free(copy);
	if (ok)
		return p;
	ptx_free(p);
	return NULL;
}

void ptx_free(struct ptx *p)
{
	free(p);
}

unsigned int ptx_params(const struct ptx *p)
{
	return p->nparams;
}

unsigned int ptx_param_size(const struct ptx *p, unsigned int i)
{
	return (unsigned int)p->params[i].bits / 8;
}

struct lane {
	uint64_t regs[MAX_NAMES];
	unsigned int pc;
	bool waits, ended;	/* at a barrier */
};

struct store {
	uint32_t *at, value;
};

/* A word that was loaded, and what it was at the block's last membar.sys. */
struct seen {
	uint32_t *at, value;
	bool used;	/* the next volatile load is of the memory */
};

/*
 * The kernel while it runs. Stores of a block wait for its membar.sys. The first load after
 * that may be as old as it is.
 */
struct run {
	const struct ptx *p;
	unsigned int blocks, threads;
	void **params;
	ptx_memory *memory;
	struct lane *lanes;
	struct block {
		struct store *stores;
		struct seen *seen;
		size_t nstores, room, nseen, seen_room;
	} *block;
	const char *fault;
};

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static uint64_t get(const struct lane *l, const struct value *v)
{
	if (v->number)
		return v->v;
	return v->v == CLOCK ? now_ns() : l->regs[v->v];
}

/* The words that an instruction's operand has the address of. */
static uint32_t *at(struct run *r, const struct lane *l, const struct code *c, int i)
{
	uint64_t addr = get(l, &c->v[i]) + c->v[i].plus;
	size_t size = (size_t)ops[c->op].bits / 8;
	uint32_t *p = addr % size ? NULL : r->memory(addr, size);

	if (!p)
		r->fault = addr % size ? "a misaligned address" : "an illegal address";
	return p;
}

/* Room for one more. */
static void *grown(void *list, size_t n, size_t *room, size_t size)
{
	if (n < *room)
		return list;
	*room = 2 * *room + 16;
	list = realloc(list, *room * size);
	if (!list)
		abort();
	return list;
}

/* The first plain load of a word is then of this time or later. */
static void see_anew(struct block *b)
{
	for (size_t i = 0; i < b->nseen; i++) {
		b->seen[i].value = __atomic_load_n(b->seen[i].at, __ATOMIC_ACQUIRE);
		b->seen[i].used = false;
	}
}

/* The last ones first, for nothing orders them. */
static void membar(struct block *b)
{
	size_t n = b->nstores;

	while (b->nstores) {
		struct store *s = &b->stores[--b->nstores];

		__atomic_store_n(s->at, s->value, __ATOMIC_RELEASE);
		if (b->nstores == n - 1 && b->nstores)
			usleep(50);
	}
	see_anew(b);
}

static void keep(struct block *b, uint32_t *at, uint32_t value)
{
	for (size_t i = 0; i < b->nstores; i++)
		if (b->stores[i].at == at) {
			b->stores[i].value = value;
			return;
		}
	b->stores = grown(b->stores, b->nstores, &b->room, sizeof(*b->stores));
	b->stores[b->nstores++] = (struct store){ at, value };
}

/* A plain load may be of the cache until a fence or an acquire, a volatile one once. */
static uint32_t see(struct block *b, uint32_t *at, bool plain)
{
	struct seen *s = b->seen;

	while (s < b->seen + b->nseen && s->at != at)
		s++;
	if (s < b->seen + b->nseen && (plain || !s->used)) {
		s->used = true;
		return s->value;
	}
	if (s == b->seen + b->nseen) {
		b->seen = grown(b->seen, b->nseen, &b->seen_room, sizeof(*b->seen));
		s = &b->seen[b->nseen++];
		*s = (struct seen){ .at = at, .used = true };
	}
	s->value = __atomic_load_n(at, __ATOMIC_ACQUIRE);
	return s->value;
}

/* The block's own store, or what it sees. */
static uint32_t load_word(struct block *b, uint32_t *p, bool plain)
{
	uint32_t seen = see(b, p, plain);

	for (size_t i = 0; i < b->nstores; i++)
		if (b->stores[i].at == p)
			return b->stores[i].value;
	return seen;
}

static void load(struct run *r, struct lane *l, const struct code *c)
{
	struct block *b = &r->block[l->regs[CTAID]];
	uint32_t *p = at(r, l, c, 1);

	if (!p)
		return;
	l->regs[c->v[0].v] = load_word(b, p, c->op != LD32);
	if (ops[c->op].bits == 64)
		l->regs[c->v[0].v] |= (uint64_t)load_word(b, p + 1, true) << 32;
}

static void store(struct run *r, struct lane *l, const struct code *c)
{
	struct block *b = &r->block[l->regs[CTAID]];
	uint32_t *p = at(r, l, c, 0);
	uint64_t value = get(l, &c->v[1]);

	if (!p)
		return;
	keep(b, p, (uint32_t)value);
	if (ops[c->op].bits == 64)
		keep(b, p + 1, (uint32_t)(value >> 32));
}

/* At once and whole, as others see it; nothing is ordered by it but what a release ends. */
static void store_now(struct run *r, struct lane *l, const struct code *c)
{
	uint32_t *p = at(r, l, c, 0);
	uint64_t value = get(l, &c->v[1]);

	if (!p)
		return;
	if (c->op == RELEASE32 || c->op == RELEASE64)
		membar(&r->block[l->regs[CTAID]]);
	if (ops[c->op].bits == 64)
		__atomic_store_n((uint64_t *)p, value, __ATOMIC_RELEASE);
	else
		__atomic_store_n(p, (uint32_t)value, __ATOMIC_RELEASE);
}

/* What is there now. After an acquire, plain loads see what was there before it. */
static void load_now(struct run *r, struct lane *l, const struct code *c)
{
	uint32_t *p = at(r, l, c, 1);

	if (!p)
		return;
	l->regs[c->v[0].v] = ops[c->op].bits == 64 ? __atomic_load_n((uint64_t *)p, __ATOMIC_ACQUIRE) :
						     __atomic_load_n(p, __ATOMIC_ACQUIRE);
	if (c->op == ACQUIRE32)
		see_anew(&r->block[l->regs[CTAID]]);
}

static void param(struct run *r, struct lane *l, const struct code *c)
{
	const void *from = r->params[c->v[1].v];

	if (c->op == LD_PARAM64)
		memcpy(&l->regs[c->v[0].v], from, 8);
	else
		l->regs[c->v[0].v] = *(const uint32_t *)from;
}

/* The last of the block that comes sets all of them free. */
static void meet(struct run *r, struct lane *l)
{
	struct lane *first = &r->lanes[l->regs[CTAID] * r->threads];
	uint64_t any = 0;

	l->waits = true;
	for (unsigned int i = 0; i < r->threads; i++)
		if (first[i].ended)
			r->fault = "a barrier without a thread that ended";
	for (unsigned int i = 0; i < r->threads; i++)
		if (!first[i].waits)
			return;
	for (unsigned int i = 0; i < r->threads; i++)
		any |= first[i].regs[r->p->code[first[i].pc - 1].v[2].v];
	for (unsigned int i = 0; i < r->threads; i++) {
		first[i].regs[r->p->code[first[i].pc - 1].v[0].v] = any;
		first[i].waits = false;
	}
}

static void end(struct run *r, struct lane *l)
{
	const struct lane *first = &r->lanes[l->regs[CTAID] * r->threads];

	l->ended = true;
	for (unsigned int i = 0; i < r->threads; i++)
		if (first[i].waits)
			r->fault = "a thread that ends while others wait for it";
}

static void step(struct run *r, struct lane *l)
{
	const struct code *c = &r->p->code[l->pc++];
	uint64_t a = 0, b = 0, *d = &l->regs[c->v[0].v], uint32 = UINT32_MAX;

	if (c->guard >= 0 && !l->regs[c->guard] != c->unless)
		return;
	if (strlen(ops[c->op].operands) > 2) {
		a = get(l, &c->v[1]);
		b = get(l, &c->v[2]);
		if (ops[c->op].bits == 32) {
			a &= uint32;
			b &= uint32;
		}
	}
	switch (c->op) {
	case LD_PARAM32:
	case LD_PARAM64: param(r, l, c); break;
	case MOV32: *d = get(l, &c->v[1]) & uint32; break;
	case CVTA:
	case MOV64: *d = get(l, &c->v[1]); break;
	case SETP_EQ32: *d = a == b; break;
	case SETP_NE32: *d = a != b; break;
	case SETP_GT32: *d = a > b; break;
	case SETP_LT32:
	case SETP_LT64: *d = a < b; break;
	case SETP_GE32:
	case SETP_GE64: *d = a >= b; break;
	case AND_PRED: *d = a & b; break;
	case ADD32: *d = (a + b) & uint32; break;
	case SUB64: *d = a - b; break;
	case MUL32: *d = a * b & uint32; break;
	case XOR32: *d = a ^ b; break;
	case OR32: *d = a | b; break;
	case AND32: *d = a & b; break;
	case ADD64: *d = a + b; break;
	case SHR64: *d = (b & uint32) > 63 ? 0 : a >> (b & uint32); break;
	case CVT32: *d = get(l, &c->v[1]) & uint32; break;
	case MUL_WIDE: *d = (a & uint32) * (b & uint32); break;
	case MAD32: *d = (a * b + get(l, &c->v[3])) & uint32; break;
	case MAD_WIDE: *d = (a & uint32) * (b & uint32) + get(l, &c->v[3]); break;
	case PLAIN_LD32:
	case PLAIN_LD64:
	case LD32: load(r, l, c); break;
	case PLAIN_ST32:
	case PLAIN_ST64:
	case ST32: store(r, l, c); break;
	case ACQUIRE32:
	case RELAXED_LD64: load_now(r, l, c); break;
	case RELEASE32:
	case RELEASE64:
	case RELAXED_ST32:
	case RELAXED_ST64: store_now(r, l, c); break;
	case FENCE:
	case MEMBAR: membar(&r->block[l->regs[CTAID]]); break;
	case BAR_OR: meet(r, l); break;
	case BRA: l->pc = (unsigned int)r->p->labels[c->v[0].v].bits; break;
	case RET: end(r, l); break;
	}
}

/* A turn of each thread. Returns whether one is left. */
static bool turn(struct run *r)
{
	bool left = false;

	for (size_t i = 0; i < (size_t)r->blocks * r->threads && !r->fault; i++) {
		struct lane *l = &r->lanes[i];

		for (int n = 0; n < SLICE && !l->ended && !l->waits && !r->fault; n++) {
			if (l->pc >= r->p->ncode)
				r->fault = "the end of its text";
			else
				step(r, l);
		}
		left |= !l->ended;
	}
	return left && !r->fault;
}

const char *ptx_run(struct ptx *p, unsigned int blocks, unsigned int threads, void **params,
		    ptx_memory *memory)
{
	struct run r = { .p = p, .blocks = blocks, .threads = threads, .params = params, .memory = memory };

	r.lanes = calloc((size_t)blocks * threads, sizeof(*r.lanes));
	r.block = calloc(blocks, sizeof(*r.block));
	if (!r.lanes || !r.block)
		abort();
	for (size_t i = 0; i < (size_t)blocks * threads; i++) {
		r.lanes[i].regs[TID] = i % threads;
		r.lanes[i].regs[CTAID] = i / threads;
		r.lanes[i].regs[NTID] = threads;
		r.lanes[i].regs[NCTAID] = blocks;
	}
	while (turn(&r))
		sched_yield();
	for (unsigned int i = 0; i < blocks; i++) {
		membar(&r.block[i]);
		free(r.block[i].stores);
		free(r.block[i].seen);
	}
	free(r.block);
	free(r.lanes);
	return r.fault;
}
