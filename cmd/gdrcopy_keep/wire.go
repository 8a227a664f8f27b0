package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

const (
	maxMessage = 16 << 20
	maxFDs     = 253 // of a message, as Linux has it
	patience   = 30 * time.Second
)

// A refusal is an answer that says no. To who asked it is an error.
type refusal struct {
	Errno string `json:"errno"`
	Text  string `json:"error"`
}

func (r *refusal) Error() string { return r.Text }

func refuse(errno, format string, args ...any) error {
	return &refusal{errno, fmt.Sprintf("%.9999s", fmt.Sprintf(format, args...))}
}

// A conn is an end of a conversation, whose messages docs/keep.md has.
type conn struct {
	*net.UnixConn
	patience time.Duration // with each message
}

// send sends v. The descriptors stay open here.
func (c conn) send(v any, fds ...int) error {
	buffer, n := bytes.NewBuffer(make([]byte, 4)), 0
	encoder := json.NewEncoder(buffer)
	encoder.SetEscapeHTML(false) // a table has the length with which it came
	encoder.Encode(v)
	message := buffer.Bytes()
	binary.LittleEndian.PutUint32(message, uint32(len(message)-4))
	c.SetWriteDeadline(time.Now().Add(c.patience))
	err := patiently(func() (err error) {
		n, _, err = c.WriteMsgUnix(message, unix.UnixRights(fds...), nil)
		return err
	})
	if err == nil && n < len(message) {
		_, err = c.Write(message[n:])
	}
	return err
}

// patiently sends descriptors. Linux limits what a user has in flight, all of his processes together.
func patiently(send func() error) error {
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		if err := send(); err != unix.EINTR && !errors.Is(err, unix.ETOOMANYREFS) || time.Now().After(end) {
			return err
		}
	}
}

// receive waits for a message. Its descriptors, at most max, are the caller's to close, after an error, too.
func (c conn) receive(v any, max int) (fds []int, err error) {
	c.SetReadDeadline(time.Now().Add(c.patience))
	part, control := make([]byte, 1<<16), make([]byte, unix.CmsgSpace(4*(max+1)))
	var data []byte
	for size := 4; len(data) < size; {
		n, controls, flags, _, err := c.ReadMsgUnix(part[:min(size-len(data), len(part))], control)
		messages, _ := unix.ParseSocketControlMessage(control[:controls])
		for i := range messages {
			some, _ := unix.ParseUnixRights(&messages[i])
			fds = append(fds, some...)
		}
		switch {
		case errors.Is(err, io.EOF) && len(data) == 0:
			return fds, io.EOF
		case err != nil:
			return fds, err
		case len(fds) > max:
			return fds, refuse("EPROTO", "more than %d descriptors came", max)
		case flags&unix.MSG_CTRUNC != 0:
			return fds, refuse("EMFILE", "descriptors were lost on the way")
		}
		if data = append(data, part[:n]...); size == 4 && len(data) == 4 {
			size += int(binary.LittleEndian.Uint32(data))
		}
		if size > 4+maxMessage {
			return fds, refuse("EMSGSIZE", "a message of %d bytes came; %d may", size-4, maxMessage)
		}
	}
	if err := json.Unmarshal(data[4:], v); err != nil {
		return fds, refuse("EPROTO", "a message came that is none: %v", err)
	}
	return fds, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// ready says whether one of events is there on fd, or an end.
func ready(fd int, events int16) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: events}}, 0)
	return err == nil && n > 0
}
