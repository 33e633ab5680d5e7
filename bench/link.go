package main

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// A link is a way to a server that takes time: what is sent arrives later, in
// each direction. It is the same for all protocols, and counts round trips.
type link struct {
	listener   net.Listener
	backend    string
	delay      time.Duration
	roundTrips atomic.Int64 // times that a client sent something after the server had
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

// close ends the link for new connections; the others end with either side.
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
		var asked atomic.Bool // the client was the last to send
		go l.carry(server, client, func() {
			if !asked.Swap(true) {
				l.roundTrips.Add(1)
			}
		})
		go l.carry(client, server, func() { asked.Store(false) })
	}
}

type parcel struct {
	bytes []byte
	due   time.Time
}

// carry takes bytes from one side to the other and closes both at the end.
func (l *link) carry(to io.WriteCloser, from io.ReadCloser, seen func()) {
	parcels := make(chan parcel, 1024)
	var writing sync.WaitGroup
	writing.Go(func() {
		for p := range parcels {
			time.Sleep(time.Until(p.due))
			to.Write(p.bytes)
		}
	})
	for {
		buf := make([]byte, 16<<10)
		n, err := from.Read(buf)
		if n > 0 {
			seen()
			parcels <- parcel{buf[:n], time.Now().Add(l.delay)}
		}
		if err != nil {
			break
		}
	}
	close(parcels)
	writing.Wait()
	to.Close()
	from.Close()
}

// linked are the sites behind links with a delay.
func (s sites) linked(delay time.Duration) (sites, []*link, error) {
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
	addr, err := through(s.mysqlAddr())
	if err != nil {
		return s, links, err
	}
	far := s.withMySQLAddr(addr)
	if far.Redis, err = through(s.Redis); err != nil {
		return s, links, err
	}
	far.Etcd, err = through(s.Etcd)
	return far, links, err
}
