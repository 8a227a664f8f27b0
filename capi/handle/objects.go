package handle

import "sync"

// Objects are the things of one kind that handles of a table name. Its methods may be
// called from any goroutine.
type Objects[T any] struct {
	table *Table
	mu    sync.RWMutex
	named map[Handle]T
}

// NewObjects makes Objects whose handles are of t.
func NewObjects[T any](t *Table) *Objects[T] {
	return &Objects[T]{table: t, named: map[Handle]T{}}
}

// Put makes h, of the table's Alloc, the handle of an object.
func (o *Objects[T]) Put(h Handle, object T) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.named[h] = object
}

// Get finds the object of a handle.
func (o *Objects[T]) Get(h Handle) (T, bool) {
	o.mu.RLock()
	object, ok := o.named[h]
	o.mu.RUnlock()
	return object, ok
}

// Remove frees the handle of an object that is gone. It does so once.
func (o *Objects[T]) Remove(h Handle) {
	if _, ok := o.Forget(h); ok {
		o.table.Free(h)
	}
}

// Forget takes an object out, and leaves its handle to the caller. It returns false where
// the object is out already.
func (o *Objects[T]) Forget(h Handle) (T, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	object, ok := o.named[h]
	delete(o.named, h)
	return object, ok
}

// Those lists the handles of the objects that is says yes to.
func (o *Objects[T]) Those(is func(T) bool) []Handle {
	o.mu.RLock()
	defer o.mu.RUnlock()
	var handles []Handle
	for h, object := range o.named {
		if is(object) {
			handles = append(handles, h)
		}
	}
	return handles
}

// Len is the number of objects.
func (o *Objects[T]) Len() int {
	o.mu.RLock()
	defer o.mu.RUnlock()
	return len(o.named)
}

// Gate lets copies of the C side through the handle of a buffer. It is a core.Gate.
type Gate struct {
	table *Table
	h     Handle
	drain *Drain // not nil: the mapping shall go when its copies have ended
	gone  func(Handle)
}

// Gate is a new gate of h.
func (o *Objects[T]) Gate(h Handle) *Gate { return &Gate{table: o.table, h: h, gone: o.Remove} }

// Handle is the handle of the buffer.
func (g *Gate) Handle() Handle { return g.h }

// Open lets copies begin through the n bytes mapped at va. typ is a value of enum
// gdr_mapping_type.
func (g *Gate) Open(va uintptr, n uint64, typ uint32) {
	g.drain = nil
	g.table.Publish(g.h, va, n, typ)
}

// Shut keeps new copies out. It returns false while copies run. It may be called again.
func (g *Gate) Shut() bool {
	if g.drain == nil {
		g.drain = g.table.Retract(g.h)
	}
	return g.drain.Done()
}

// Gone ends the handle, whose buffer is unpinned.
func (g *Gate) Gone() { g.gone(g.h) }
