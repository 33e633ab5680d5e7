// Package wire is a TCP proxy in front of a MySQL server. It counts what goes
// over the wire and injects the faults that a network can have. It does not know TLS.
package wire

import (
	"maps"
	"net"
	"slices"
	"sync"
	"testing"
	"time"
)

// Proxy forwards the connections that it accepts to a server. Its methods may
// be called from several goroutines, and take effect on all its connections.
type Proxy struct {
	listener net.Listener
	running  sync.WaitGroup // every goroutine

	mu      sync.Mutex // guards the following fields, not held during I/O
	backend string
	conns   map[*conn]struct{}
	closed  bool

	// Counters.
	connections, commands, roundTrips int
	queries                           []string

	// Faults.
	delay                time.Duration
	refuse, hole         bool
	thaw                 chan struct{} // nil if not frozen, else closed when that ends
	cutCommand, cutReply bool          // asked for, not done yet
	failReply            []byte        // the error that replaces the next reply; nil if none does
	repeat               bool          // send commands twice
	forget               bool          // the prepared statements
	interfere            func(query string) Interference
}

// New returns a proxy in front of the server at a TCP address, for one test.
func New(tb testing.TB, backend string) *Proxy {
	tb.Helper()
	p, err := Listen(backend)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(p.Close)
	return p
}

// Listen returns a proxy in front of the server at a TCP address.
func Listen(backend string) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{listener: l, backend: backend, conns: map[*conn]struct{}{}}
	p.running.Go(p.accept)
	return p, nil
}

// Addr is the TCP address for clients.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.serve(client.(*net.TCPConn))
	}
}

// serve lets a new connection run by itself.
func (p *Proxy) serve(client *net.TCPConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.connections++
	if p.refuse || p.closed {
		reset(client)
		return
	}
	c := &conn{proxy: p, client: client, done: make(chan struct{})}
	p.conns[c] = struct{}{}
	p.running.Go(c.run)
}

// Close ends the proxy and its connections, and returns when nothing of it runs any more.
func (p *Proxy) Close() {
	p.listener.Close()
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.Cut() // what serve lets in is seen here, or it sees closed
	p.running.Wait()
}

// Connections is how many connections clients have opened, the refused ones too.
func (p *Proxy) Connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.connections
}

// Open is how many connections are open now.
func (p *Proxy) Open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns)
}

// Commands is how many commands clients have sent (COM_QUERY, COM_STMT_PREPARE
// …; not COM_QUIT, and nothing of the handshake). A command that has no reply,
// as COM_STMT_CLOSE, may arrive here after the client's call has returned.
func (p *Proxy) Commands() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.commands
}

// RoundTrips is how many times a client has sent a command, or several without
// waiting between them, and needed a reply.
func (p *Proxy) RoundTrips() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.roundTrips
}

// Queries are the texts of all COM_QUERY, in the order of their arrival.
func (p *Proxy) Queries() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.queries)
}

// Reset sets all counters to zero; Open is none.
func (p *Proxy) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.connections, p.commands, p.roundTrips, p.queries = 0, 0, 0, nil
}

// SetDelay makes all that arrives from now on arrive d later, in each
// direction. It is latency: the throughput remains.
func (p *Proxy) SetDelay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// Cut breaks all connections.
func (p *Proxy) Cut() {
	p.mu.Lock()
	conns := slices.Collect(maps.Keys(p.conns))
	p.mu.Unlock()
	for _, c := range conns {
		c.cut()
	}
}

// CutAfterNextCommand breaks the connection on which the next command comes as
// soon as the server has it. The server executes it, maybe after the client has its error.
func (p *Proxy) CutAfterNextCommand() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cutCommand = true
}

// CutBeforeNextReply breaks the connection on which the next command comes as
// soon as the server replies. The client gets its error after the execution.
func (p *Proxy) CutBeforeNextReply() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cutReply = true
}

// FailNextReply lets the server execute the next command and passes on an error in
// place of its reply, as a proxy does that has lost its backend. It is for commands
// with a reply of one packet (no rows), without compression.
func (p *Proxy) FailNextReply(number uint16, message string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failReply = errorPacket(number, message)
}

// Repeat sends each command but SELECT twice while it is on, and passes on the
// second reply alone, as a proxy does that has lost the first one. It is for
// commands with a reply of one packet (no rows), without compression.
func (p *Proxy) Repeat(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.repeat = on
}

// Forget makes each execution of a prepared statement fail while it is on, as by a proxy that has
// changed the connection to the server. It works without compression.
func (p *Proxy) Forget(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forget = on
}

// Interference is what a proxy that knows the protocol does to one statement.
type Interference struct {
	Repeat  bool   // send it twice and pass on the second reply alone
	Error   uint16 // the error that replaces the reply; 0 if none does
	NotSent bool   // answer with Error and do not send it
}

// Interfere calls choose for each statement and does what it returns; nil ends that.
// The query of a prepared statement is ""; none is a statement of a connection on which a SELECT was
// prepared. Interference is for statements with a reply of one packet (no rows), without
// compression. choose must not call methods of the proxy.
func (p *Proxy) Interfere(choose func(query string) Interference) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.interfere = choose
}

// Freeze holds all bytes in both directions while it is on; afterwards they are forwarded.
func (p *Proxy) Freeze(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case on && p.thaw == nil:
		p.thaw = make(chan struct{})
	case !on && p.thaw != nil:
		close(p.thaw)
		p.thaw = nil
	}
}

// BlackHole drops all bytes in both directions while it is on, and neither side
// notices; new connections are accepted and not served. When it is switched
// off, the connections that existed meanwhile break.
func (p *Proxy) BlackHole(on bool) {
	p.mu.Lock()
	var conns []*conn
	if p.hole && !on {
		conns = slices.Collect(maps.Keys(p.conns))
	}
	p.hole = on
	p.mu.Unlock()
	for _, c := range conns {
		c.cut()
	}
}

// Redirect makes new connections go to another server, as an address that moves
// with the primary does. Open ones stay where they are, until Cut.
func (p *Proxy) Redirect(backend string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.backend = backend
}

// Refuse breaks new connections at once while it is on.
func (p *Proxy) Refuse(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = on
}
