// SPDX-License-Identifier: (GPL-2.0 OR MIT)
/*
 * card_sim.c - the driver of a capture card that does not exist. TEST DOUBLE: it is for
 * the virtual machine, and never shipped.
 *
 * /dev/card_sim has a frame ready each period, as examples/capture/card_uapi.h says them,
 * from the first read or poll to the close. One program has it at a time.
 *
 *	read(2) of a frame	the next one, into any memory: a mapping of a BAR, too
 *	mmap, and read(2) of 4 bytes	the card's slots. A read waits for the next frame,
 *				as one waits for the interrupts of a UIO device, and
 *				gives how many there were. The slot is the reader's
 *				until its next read
 *	CARD_DMA		frames go into a dma-buf; the reads are the same
 *
 * As with a card:
 *
 * - A frame takes its slot when its period begins. If none is free, it is lost and counted.
 *   So one slot is the card's, and with a single slot every second frame is lost.
 * - For DMA it uses nothing but the bus addresses of the exporter's list: no struct page,
 *   no vmap. It has a static attachment, as the drivers of most cards.
 * - The close ends the DMA. Then the dma-buf is given back, and not before.
 *
 * The CPU makes the DMA: it stores to the bus addresses. That is right only where they are the
 * CPU's, too, and those of a device. So system memory is refused.
 */
#define pr_fmt(fmt) "card_sim: " fmt

#include <linux/dma-buf.h>
#include <linux/dma-mapping.h>
#include <linux/fs.h>
#include <linux/hrtimer.h>
#include <linux/io.h>
#include <linux/ioport.h>
#include <linux/kthread.h>
#include <linux/ktime.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/platform_device.h>
#include <linux/poll.h>
#include <linux/scatterlist.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>
#include <linux/wait.h>

#include "card_uapi.h"

#define CARD_FRAME_MIN 64
#define CARD_FRAME_MAX (64U << 20)
#define CARD_SLOTS_MAX 256
#define CARD_MEMORY_MAX (256ULL << 20)
#define CARD_PERIOD_MIN 100
#define CARD_PERIOD_MAX 10000000

/* Where the DMA goes. views are those of the CPU, one for each entry of the list. */
struct card_target {
	struct dma_buf *buf;		/* NULL: no DMA */
	struct dma_buf_attachment *attachment;
	struct sg_table *sgt;
	void __iomem **views;
	u64 stride;
};

/*
 * An open file. taken <= next <= filled <= taken + slots, as the numbers wrap. The thread
 * alone changes filled, and the reader, with its mutex, next and taken.
 */
struct card {
	struct mutex reader;		/* reads, requests and the begin */
	spinlock_t lock;		/* the five numbers */
	wait_queue_head_t wait;
	struct task_struct *thread;	/* NULL: not begun */
	ktime_t start;
	u32 slots;
	u32 filled;			/* frames that were ready, ever */
	u32 next;			/* of them, those that the reader knows of */
	u32 taken;			/* of them, those that it is done with */
	u32 lost;
	u8 *memory;			/* the slots; with DMA its begin is the next frame */
	struct card_target target;
};

static unsigned int frame = 65536;
module_param(frame, uint, 0444);
MODULE_PARM_DESC(frame, "Bytes of a frame, a multiple of 8 (default 65536)");

static unsigned int period_us = 20000;
module_param(period_us, uint, 0444);
MODULE_PARM_DESC(period_us, "A frame each so many microseconds (default 20000)");

static unsigned int slots = 8;
module_param(slots, uint, 0444);
MODULE_PARM_DESC(slots, "Frames that the card's memory has room for (default 8)");

static unsigned long card_is_open;
static struct platform_device *card_platform;

/* The dma-buf that frames go into. */

/* The CPU's view of an entry, where that is the memory of a device. */
static void __iomem *card_view(dma_addr_t bus, u64 size)
{
	if (region_intersects(bus, size, IORESOURCE_SYSTEM_RAM,
			      IORES_DESC_NONE) != REGION_DISJOINT)
		return NULL;
	return ioremap_wc(bus, size);
}

static void card_views_free(struct card_target *t)
{
	struct scatterlist *sg;
	int i;

	for_each_sgtable_dma_sg(t->sgt, sg, i)
		if (t->views[i])
			iounmap(t->views[i]);
	kvfree(t->views);
}

static int card_views_new(struct card_target *t)
{
	struct scatterlist *sg;
	int i;

	t->views = kvcalloc(t->sgt->nents, sizeof(*t->views), GFP_KERNEL);
	if (!t->views)
		return -ENOMEM;
	for_each_sgtable_dma_sg(t->sgt, sg, i) {
		t->views[i] = card_view(sg_dma_address(sg), sg_dma_len(sg));
		if (!t->views[i])
			goto fail;
	}
	return 0;

fail:
	card_views_free(t);
	return -EOPNOTSUPP;
}

static struct sg_table *card_map(struct dma_buf_attachment *attachment)
{
#ifdef SIM_HAVE_MAP_ATTACHMENT_UNLOCKED
	return dma_buf_map_attachment_unlocked(attachment, DMA_FROM_DEVICE);
#else
	return dma_buf_map_attachment(attachment, DMA_FROM_DEVICE);
#endif
}

static void card_unmap(struct card_target *t)
{
#ifdef SIM_HAVE_MAP_ATTACHMENT_UNLOCKED
	dma_buf_unmap_attachment_unlocked(t->attachment, t->sgt, DMA_FROM_DEVICE);
#else
	dma_buf_unmap_attachment(t->attachment, t->sgt, DMA_FROM_DEVICE);
#endif
}

static void card_target_free(struct card_target *t)
{
	if (!t->buf)
		return;
	card_views_free(t);
	card_unmap(t);
	dma_buf_detach(t->buf, t->attachment);
	dma_buf_put(t->buf);
	t->buf = NULL;
}

static int card_target_check(const struct dma_buf *buf, const struct card_dma *p)
{
	if (!p->slots || p->slots > CARD_SLOTS_MAX || p->stride % sizeof(u64) ||
	    p->stride < frame || p->stride > buf->size / p->slots)
		return -EINVAL;
	return 0;
}

static int card_target_new(struct card_target *t, const struct card_dma *p)
{
	int ret;

	t->buf = dma_buf_get(p->fd);
	if (IS_ERR(t->buf)) {
		ret = PTR_ERR(t->buf);
		goto none;
	}
	ret = card_target_check(t->buf, p);
	if (ret)
		goto put;
	t->attachment = dma_buf_attach(t->buf, &card_platform->dev);
	if (IS_ERR(t->attachment)) {
		ret = PTR_ERR(t->attachment);
		goto put;
	}
	t->sgt = card_map(t->attachment);
	if (IS_ERR(t->sgt)) {
		ret = PTR_ERR(t->sgt);
		goto detach;
	}
	ret = card_views_new(t);
	if (ret)
		goto unmap;
	t->stride = p->stride;
	return 0;

unmap:
	card_unmap(t);
detach:
	dma_buf_detach(t->buf, t->attachment);
put:
	dma_buf_put(t->buf);
none:
	t->buf = NULL;
	return ret;
}

/* The DMA: at counts the bytes of the dma-buf. */
static void card_dma_write(const struct card_target *t, u64 at, const u8 *from, u64 size)
{
	struct scatterlist *sg;
	u64 n;
	int i;

	for_each_sgtable_dma_sg(t->sgt, sg, i) {
		if (!size)
			break;
		if (at >= sg_dma_len(sg)) {
			at -= sg_dma_len(sg);
			continue;
		}
		n = min_t(u64, size, sg_dma_len(sg) - at);
		memcpy_toio(t->views[i] + at, from, n);
		from += n;
		size -= n;
		at = 0;
	}
	wmb(); /* the frame is in its place before anybody is told of it */
}

/* The card's side: a thread, as punctual as a card. */

static void card_fill(void *at, u32 number)
{
	u64 *words = at;
	u32 i;

	for (i = 0; i < frame / sizeof(*words); i++)
		words[i] = card_word(number, i);
}

/* The frame into the next free slot. */
static void card_make(struct card *c, u32 number)
{
	u64 slot = c->filled % c->slots;

	if (!c->target.buf) {
		card_fill(c->memory + slot * frame, number);
		return;
	}
	card_fill(c->memory, number);
	card_dma_write(&c->target, slot * c->target.stride, c->memory, frame);
}

static bool card_has_room(struct card *c)
{
	bool room;

	spin_lock(&c->lock);
	room = c->filled - c->taken < c->slots;
	spin_unlock(&c->lock);
	return room;
}

static void card_announce(struct card *c, bool ready)
{
	spin_lock(&c->lock);
	if (ready)
		c->filled++;
	else
		c->lost++;
	spin_unlock(&c->lock);
	wake_up_interruptible(&c->wait);
}

static void card_wait_until(ktime_t due)
{
	set_current_state(TASK_INTERRUPTIBLE);
	if (kthread_should_stop())
		__set_current_state(TASK_RUNNING);
	else
		schedule_hrtimeout(&due, HRTIMER_MODE_ABS);
}

static int card_run(void *data)
{
	struct card *c = data;
	u32 number;

	sched_set_fifo(current);
	for (number = 0; !kthread_should_stop(); number++) {
		bool room = card_has_room(c);

		if (room)
			card_make(c, number);
		card_wait_until(ktime_add_us(c->start, (u64)number * period_us));
		if (!kthread_should_stop())
			card_announce(c, room);
	}
	return 0;
}

/* The first frame is due one period from now. Called with the reader's mutex held. */
static int card_begin(struct card *c)
{
	struct task_struct *thread;

	if (c->thread)
		return 0;
	c->start = ktime_add_us(ktime_get(), period_us);
	thread = kthread_run(card_run, c, "card_sim");
	if (IS_ERR(thread))
		return PTR_ERR(thread);
	WRITE_ONCE(c->thread, thread);
	return 0;
}

/* The reader's side. */

static bool card_ready(struct card *c)
{
	bool ready;

	spin_lock(&c->lock);
	ready = c->filled != c->next;
	spin_unlock(&c->lock);
	return ready;
}

/* The next frame is the reader's. The ones before it are not, from now on. */
static void card_take(struct card *c, bool keep)
{
	spin_lock(&c->lock);
	c->taken = c->next++;
	if (!keep)
		c->taken = c->next;
	spin_unlock(&c->lock);
}

/* Gives the next frame, or a notice of it. Called with the reader's mutex held. */
static ssize_t card_give(struct card *c, char __user *to, size_t size)
{
	u32 count = c->next + 1;
	size_t slot = c->next % c->slots;

	if (!card_ready(c))
		return -EAGAIN;
	if (size == sizeof(count)) {
		if (put_user(count, (u32 __user *)to))
			return -EFAULT;
		card_take(c, true);
		return size;
	}
	if (copy_to_user(to, c->memory + slot * frame, frame))
		return -EFAULT;
	card_take(c, false);
	return frame;
}

static ssize_t card_read(struct file *filp, char __user *to, size_t size, loff_t *pos)
{
	struct card *c = filp->private_data;
	ssize_t ret;

	do {
		ret = mutex_lock_interruptible(&c->reader);
		if (ret)
			return ret;
		ret = card_begin(c);
		if (!ret && size != sizeof(u32) && (size < frame || c->target.buf))
			ret = -EINVAL;
		if (!ret)
			ret = card_give(c, to, size);
		mutex_unlock(&c->reader);
		if (ret != -EAGAIN || filp->f_flags & O_NONBLOCK)
			return ret;
		ret = wait_event_interruptible(c->wait, card_ready(c));
	} while (!ret);
	return ret;
}

static __poll_t card_poll(struct file *filp, poll_table *table)
{
	struct card *c = filp->private_data;
	int ret = 0;

	poll_wait(filp, &c->wait, table);
	if (!READ_ONCE(c->thread)) {
		mutex_lock(&c->reader);
		ret = card_begin(c);
		mutex_unlock(&c->reader);
	}
	if (ret)
		return EPOLLERR;
	return card_ready(c) ? EPOLLIN | EPOLLRDNORM : 0;
}

static int card_mmap(struct file *filp, struct vm_area_struct *vma)
{
	struct card *c = filp->private_data;

	return remap_vmalloc_range(vma, c->memory, vma->vm_pgoff);
}

static int card_req_info(struct card *c, struct card_info __user *arg)
{
	struct card_info info = {
		.start_ns = c->thread ? ktime_to_ns(c->start) : 0,
		.period_ns = (s64)period_us * NSEC_PER_USEC,
		.frame = frame,
		.slots = c->slots,
	};

	spin_lock(&c->lock);
	info.lost = c->lost;
	spin_unlock(&c->lock);
	return copy_to_user(arg, &info, sizeof(info)) ? -EFAULT : 0;
}

static int card_req_dma(struct card *c, struct card_dma __user *arg)
{
	struct card_dma p;
	int ret;

	if (copy_from_user(&p, arg, sizeof(p)))
		return -EFAULT;
	if (c->thread || c->target.buf)
		return -EBUSY;
	ret = card_target_new(&c->target, &p);
	if (!ret)
		c->slots = p.slots;
	return ret;
}

static long card_ioctl(struct file *filp, unsigned int cmd, unsigned long user)
{
	struct card *c = filp->private_data;
	void __user *arg = (void __user *)user;
	long ret = -ENOTTY;

	if (mutex_lock_interruptible(&c->reader))
		return -ERESTARTSYS;
	if (cmd == CARD_INFO)
		ret = card_req_info(c, arg);
	else if (cmd == CARD_DMA)
		ret = card_req_dma(c, arg);
	mutex_unlock(&c->reader);
	return ret;
}

static int card_open(struct inode *inode, struct file *filp)
{
	struct card *c;
	int ret = -ENOMEM;

	if (test_and_set_bit(0, &card_is_open))
		return -EBUSY;
	c = kzalloc(sizeof(*c), GFP_KERNEL);
	if (!c)
		goto clear;
	c->memory = vmalloc_user(PAGE_ALIGN((u64)slots * frame));
	if (!c->memory)
		goto free;
	mutex_init(&c->reader);
	spin_lock_init(&c->lock);
	init_waitqueue_head(&c->wait);
	c->slots = slots;
	filp->private_data = c;
	return nonseekable_open(inode, filp);

free:
	kfree(c);
clear:
	clear_bit(0, &card_is_open);
	return ret;
}

static int card_release(struct inode *inode, struct file *filp)
{
	struct card *c = filp->private_data;

	if (c->thread)
		kthread_stop(c->thread);
	card_target_free(&c->target);
	vfree(c->memory);
	kfree(c);
	clear_bit(0, &card_is_open);
	return 0;
}

static const struct file_operations card_fops = {
	.owner = THIS_MODULE,
	.open = card_open,
	.release = card_release,
	.read = card_read,
	.poll = card_poll,
	.mmap = card_mmap,
	.unlocked_ioctl = card_ioctl,
};

static struct miscdevice card_misc = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "card_sim",
	.fops = &card_fops,
	.mode = 0666,
};

static int __init card_init(void)
{
	int ret;

	if (frame < CARD_FRAME_MIN || frame > CARD_FRAME_MAX || frame % sizeof(u64) ||
	    !slots || slots > CARD_SLOTS_MAX || (u64)slots * frame > CARD_MEMORY_MAX ||
	    period_us < CARD_PERIOD_MIN || period_us > CARD_PERIOD_MAX)
		return -EINVAL;
	card_platform = platform_device_register_simple("card_sim", PLATFORM_DEVID_NONE, NULL, 0);
	if (IS_ERR(card_platform))
		return PTR_ERR(card_platform);
	ret = dma_coerce_mask_and_coherent(&card_platform->dev, DMA_BIT_MASK(64));
	if (!ret)
		ret = misc_register(&card_misc);
	if (ret)
		platform_device_unregister(card_platform);
	return ret;
}

static void __exit card_exit(void)
{
	misc_deregister(&card_misc);
	platform_device_unregister(card_platform);
}

module_init(card_init);
module_exit(card_exit);

MODULE_DESCRIPTION("Test double of a capture card");
MODULE_AUTHOR("The gdrapi authors");
MODULE_LICENSE("Dual MIT/GPL");
/* The macro for this wants a name before 6.13, and a string from then on. */
MODULE_INFO(import_ns, "DMA_BUF");
