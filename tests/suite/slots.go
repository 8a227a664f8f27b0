// SPDX-License-Identifier: MIT

package suite

import "sync"

// slots lets n rows run at a time. Of those that wait the first of the table is next.
type slots struct {
	mu      sync.Mutex
	n, free int
	waiting []*waiter // by order
}

type waiter struct {
	order, wants int
	ready        chan struct{}
}

func newSlots(n int) *slots { return &slots{n: n, free: n} }

// take waits for the row's turn. One that runs alone takes all slots.
func (s *slots) take(r *row) (release func()) {
	w := &waiter{order: r.order, wants: 1, ready: make(chan struct{})}
	if r.Alone {
		w.wants = s.n
	}
	s.mu.Lock()
	at := 0
	for at < len(s.waiting) && s.waiting[at].order < w.order {
		at++
	}
	s.waiting = append(s.waiting[:at], append([]*waiter{w}, s.waiting[at:]...)...)
	s.next()
	s.mu.Unlock()
	<-w.ready
	return func() {
		s.mu.Lock()
		s.free += w.wants
		s.next()
		s.mu.Unlock()
	}
}

func (s *slots) next() {
	for len(s.waiting) > 0 && s.waiting[0].wants <= s.free {
		s.free -= s.waiting[0].wants
		close(s.waiting[0].ready)
		s.waiting = s.waiting[1:]
	}
}
