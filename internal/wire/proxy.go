// Package wire provides a TCP proxy in front of a MySQL server. The proxy counts commands and round
// trips, and injects faults of networks and of proxies. It does not support TLS.
package wire

import (
	"maps"
	"net"
	"slices"
	"sync"
	"testing"
	"time"
)

// A Proxy forwards the connections that it accepts to a server. Its methods are safe for concurrent
// use and affect all its connections.
type Proxy struct {
	listener net.Listener
	running  sync.WaitGroup // all goroutines of the proxy

	mu      sync.Mutex // protects following fields; not held during I/O
	backend string
	conns   map[*conn]struct{}
	closed  bool

	// Counters.
	connections, commands, roundTrips int
	queries                           []string

	// Faults.
	delay                time.Duration
	refuse, blackHole    bool
	unfrozen             chan struct{} // closed when the freeze ends; nil if the proxy is not frozen
	cutCommand, cutReply bool          // cut at the next command, or before the next reply
	failReply            []byte        // the error that replaces the next reply; nil if none does
	repeat               bool          // send commands twice
	forget               bool          // fail executions of prepared statements
	interfere            func(query string) Interference
}

// New returns a proxy in front of the server at a TCP address. It closes the proxy when the test
// ends.
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

// Addr returns the TCP address for clients.
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

// serve starts a goroutine that forwards a new connection.
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

// Close closes the proxy and cuts its connections. It returns when all goroutines have ended.
func (p *Proxy) Close() {
	p.listener.Close()
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.Cut() // serve added a concurrent connection before this, or sees that the proxy is closed
	p.running.Wait()
}

// Connections returns how many connections clients have opened, including refused ones.
func (p *Proxy) Connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.connections
}

// Open returns how many connections are open now.
func (p *Proxy) Open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns)
}

// Commands returns how many commands clients have sent, such as COM_QUERY and COM_STMT_PREPARE. It
// counts neither COM_QUIT nor the handshake. A command without a reply, such as COM_STMT_CLOSE, may
// be counted only after the client's call has returned.
func (p *Proxy) Commands() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.commands
}

// RoundTrips returns how many times a client has sent a command that has a reply, where several
// commands that are sent without waiting for replies count once.
func (p *Proxy) RoundTrips() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.roundTrips
}

// Queries returns the texts of all COM_QUERY commands in order of arrival.
func (p *Proxy) Queries() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.queries)
}

// Reset sets all counters to zero, and forgets the queries. It does not affect Open.
func (p *Proxy) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.connections, p.commands, p.roundTrips, p.queries = 0, 0, 0, nil
}

// SetDelay delays everything that is sent from now on by d, in each direction. It adds latency, but
// does not limit the throughput.
func (p *Proxy) SetDelay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// Cut cuts all connections: their clients see an error.
func (p *Proxy) Cut() {
	p.mu.Lock()
	conns := slices.Collect(maps.Keys(p.conns))
	p.mu.Unlock()
	for _, c := range conns {
		c.cut()
	}
}

// CutAfterNextCommand cuts the connection of the next command as soon as the server has received
// the command. The server executes it, maybe after the client has seen the error.
func (p *Proxy) CutAfterNextCommand() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cutCommand = true
}

// CutBeforeNextReply cuts the connection of the next command when the server replies. The server
// has executed the command before the client sees the error.
func (p *Proxy) CutBeforeNextReply() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cutReply = true
}

// FailNextReply lets the server execute the next command and replaces its reply by an error, as a
// proxy does when it loses its backend. The reply must be a single packet (no rows), and the
// connection must not be compressed.
func (p *Proxy) FailNextReply(number uint16, message string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failReply = errorPacket(number, message)
}

// Repeat makes the proxy send each command twice while it is on, and forward only the second reply,
// as a proxy does that has lost the first. It does not repeat SELECT, COM_STMT_PREPARE, and
// executions on a connection on which a SELECT was prepared. All other replies must be single
// packets, and connections must not be compressed.
func (p *Proxy) Repeat(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.repeat = on
}

// Forget makes each execution of a prepared statement fail while it is on, as behind a proxy that
// has switched to another connection to the server. Connections must not be compressed.
func (p *Proxy) Forget(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forget = on
}

// An Interference is what the proxy does to one statement.
type Interference struct {
	Repeat  bool   // send it twice, and forward only the second reply
	Error   uint16 // the error that replaces the reply; 0 if none does
	NotSent bool   // reply with Error without sending the statement
}

// Interfere makes the proxy call choose for each COM_QUERY, with its text, and for each execution
// of a prepared statement, with "", and do what it returns. It does not call choose for executions
// on a connection on which a SELECT was prepared. If choose is nil, interference ends.
//
// The replies to the chosen statements must be single packets (no rows), and connections must not
// be compressed. choose must not call methods of the proxy.
func (p *Proxy) Interfere(choose func(query string) Interference) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.interfere = choose
}

// Freeze makes the proxy hold all bytes back, in both directions, while it is on, and forward them
// afterwards.
func (p *Proxy) Freeze(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case on && p.unfrozen == nil:
		p.unfrozen = make(chan struct{})
	case !on && p.unfrozen != nil:
		close(p.unfrozen)
		p.unfrozen = nil
	}
}

// BlackHole makes the proxy drop all bytes, in both directions, while it is on, without an error on
// either side; it accepts new connections but does not forward them. When BlackHole is switched
// off, it cuts all connections that are open.
func (p *Proxy) BlackHole(on bool) {
	p.mu.Lock()
	var conns []*conn
	if p.blackHole && !on {
		conns = slices.Collect(maps.Keys(p.conns))
	}
	p.blackHole = on
	p.mu.Unlock()
	for _, c := range conns {
		c.cut()
	}
}

// Redirect forwards new connections to another server, as a virtual IP address does after a
// failover. Open connections are not affected.
func (p *Proxy) Redirect(backend string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.backend = backend
}

// Refuse makes the proxy reset new connections while it is on.
func (p *Proxy) Refuse(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = on
}
