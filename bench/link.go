package main

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// A link is a TCP proxy that delays what it forwards, in each direction, and counts round trips. It
// works for all protocols.
type link struct {
	listener   net.Listener
	backend    string
	delay      time.Duration
	roundTrips atomic.Int64 // how often a client began to send, at first or after the server had sent
}

func newLink(backend string, delay time.Duration) (*link, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l := &link{listener: listener, backend: backend, delay: delay}
	go l.accept()
	return l, nil
}

func (l *link) addr() string { return l.listener.Addr().String() }

// close closes the listener. Connections end when either side closes them.
func (l *link) close() { l.listener.Close() }

func (l *link) accept() {
	for {
		client, err := l.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", l.backend)
		if err != nil {
			client.Close()
			continue
		}
		var clientWasLast atomic.Bool // to send something
		go l.forward(server, client, func() {
			if !clientWasLast.Swap(true) {
				l.roundTrips.Add(1)
			}
		})
		go l.forward(client, server, func() { clientWasLast.Store(false) })
	}
}

// A chunk consists of bytes that are forwarded at a time.
type chunk struct {
	bytes []byte
	due   time.Time
}

// forward copies bytes from one side to the other, calls received before each chunk, and closes both
// sides at the end.
func (l *link) forward(to io.WriteCloser, from io.ReadCloser, received func()) {
	chunks := make(chan chunk, 1024)
	var writing sync.WaitGroup
	writing.Go(func() {
		for c := range chunks {
			time.Sleep(time.Until(c.due))
			to.Write(c.bytes)
		}
	})
	for {
		buf := make([]byte, 16<<10)
		n, err := from.Read(buf)
		if n > 0 {
			received()
			chunks <- chunk{buf[:n], time.Now().Add(l.delay)}
		}
		if err != nil {
			break
		}
	}
	close(chunks)
	writing.Wait()
	to.Close()
	from.Close()
}

// delayed returns endpoints that lead to the same servers through links. The caller must close the
// links, even after an error.
func (e endpoints) delayed(delay time.Duration) (endpoints, []*link, error) {
	var links []*link
	through := func(addr string) (string, error) {
		if addr == "" {
			return "", nil
		}
		l, err := newLink(addr, delay)
		if err != nil {
			return "", err
		}
		links = append(links, l)
		return l.addr(), nil
	}
	addr, err := through(e.mysqlAddr())
	if err != nil {
		return e, links, err
	}
	far := e.withMySQLAddr(addr)
	if far.Redis, err = through(e.Redis); err != nil {
		return e, links, err
	}
	far.Etcd, err = through(e.Etcd)
	return far, links, err
}
