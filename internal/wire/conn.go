package wire

import (
	"bufio"
	"net"
	"regexp"
	"sync"
	"time"
)

// conn is one client's connection and the one to the server that belongs to it.
//
// In each direction one goroutine reads and counts, another writes after the
// delay; between them is a queue, so that a delay of one piece does not delay
// the reading of the next.
type conn struct {
	proxy  *Proxy
	client *net.TCPConn
	server *net.TCPConn // nil until run has dialled

	once sync.Once
	done chan struct{} // closed by end

	// Guarded by proxy.mu.
	waiting   bool   // for the reply to a command
	reads     bool   // a SELECT was prepared, so the replies to prepared statements may be rows
	cutReply  bool   // instead of passing it on
	dropped   int    // replies that are not passed on: the first of those to a repeated command
	failReply []byte // the error that replaces the reply after those
}

// A piece is some bytes in transit, or none for the end of the connection.
type piece struct {
	bytes []byte
	due   time.Time
	cut   bool // the connection, when they have arrived
}

// queueLength limits how much is in transit; the sender waits with the rest.
const queueLength = 1024

func (c *conn) run() {
	defer c.end()
	c.proxy.mu.Lock()
	hole, backend := c.proxy.hole, c.proxy.backend
	c.proxy.mu.Unlock()
	if hole {
		<-c.done
		return
	}

	server, err := net.DialTimeout("tcp", backend, 5*time.Second)
	if err != nil {
		return
	}
	c.server = server.(*net.TCPConn)
	up, down := make(chan piece, queueLength), make(chan piece, queueLength)
	var wg sync.WaitGroup
	wg.Go(func() { c.readClient(up) })
	wg.Go(func() { c.write(c.server, up) })
	wg.Go(func() { c.readServer(down) })
	wg.Go(func() { c.write(c.client, down) })
	<-c.done
	c.server.Close() // an orderly end: the server executes what it was sent
	wg.Wait()
}

// end closes the connection and takes it off the proxy's list.
func (c *conn) end() { c.once.Do(func() { c.leave((*net.TCPConn).Close) }) }

// cut ends the connection in a way that the client sees as an error.
func (c *conn) cut() { c.once.Do(func() { c.leave(reset) }) }

func (c *conn) leave(shut func(*net.TCPConn) error) {
	c.proxy.mu.Lock()
	delete(c.proxy.conns, c)
	c.proxy.mu.Unlock()
	close(c.done)
	shut(c.client)
}

// reset closes a connection by a reset, and drops what was not sent yet.
func reset(conn *net.TCPConn) error {
	conn.SetLinger(0)
	return conn.Close()
}

// readClient reads packets, counts the commands among them and queues them all. It closes the queue.
func (c *conn) readClient(queue chan<- piece) {
	defer close(queue)
	packets := packetReader{r: bufio.NewReader(c.client)}
	for {
		packet, err := packets.next()
		if err != nil {
			c.enqueue(queue, nil, false)
			return
		}
		cut, again := c.count(&packet)
		if again && !c.enqueue(queue, packet.bytes, false) || !c.enqueue(queue, packet.bytes, cut) {
			return
		}
	}
}

// count counts a client's packet, and reports whether the connection must be cut when it has arrived, and
// whether it must be sent twice.
func (c *conn) count(packet *packet) (cut, again bool) {
	if !packet.command || packet.name == comQuit {
		return false, false
	}
	p := c.proxy
	p.mu.Lock()
	defer p.mu.Unlock()
	p.commands++
	if packet.name == comQuery {
		p.queries = append(p.queries, string(packet.args))
	}
	if packet.name == comStmtExecute && p.forget {
		copy(packet.args, "\xff\xff\xff\x00") // the id
	}
	if packet.name == comStmtClose || packet.name == comStmtSendLongData {
		return false, false // nothing is replied
	}
	if !c.waiting {
		c.waiting = true
		p.roundTrips++
	}
	cut, p.cutCommand = p.cutCommand, false
	c.cutReply, p.cutReply = c.cutReply || p.cutReply || cut, false // a reply can be quicker than the cut
	rows := packet.name == comStmtExecute && c.reads
	switch packet.name {
	case comQuery:
		rows = selects.Match(packet.args)
	case comStmtPrepare:
		c.reads, rows = c.reads || selects.Match(packet.args), true // its reply has several packets, too
	}
	again = p.repeat && !rows
	if p.interfere != nil && (packet.name == comQuery || packet.name == comStmtExecute && !rows) {
		query := ""
		if packet.name == comQuery {
			query = string(packet.args)
		}
		i := p.interfere(query)
		again = again || i.Repeat
		if i.Error != 0 {
			c.failReply = errorPacket(i.Error, "an error of the proxy")
			if i.NotSent {
				packet.bytes = ping
			}
		}
	}
	if again {
		c.dropped++
	}
	if p.failReply != nil {
		c.failReply, p.failReply = p.failReply, nil
	}
	return cut, again
}

// selects matches statements whose reply is rows.
var selects = regexp.MustCompile(`^(/\*.*?\*/\s*)*SELECT`)

// readServer reads and queues replies. It closes the queue.
func (c *conn) readServer(queue chan<- piece) {
	defer close(queue)
	var held []byte // of a reply that is not passed on as it is
	for {
		buf := make([]byte, 16<<10)
		n, err := c.server.Read(buf)
		if err != nil {
			c.enqueue(queue, nil, false)
			return
		}
		c.proxy.mu.Lock()
		c.waiting = false
		cut := c.cutReply
		held = c.replace(append(held, buf[:n]...))
		var reply []byte
		if c.dropped == 0 && c.failReply == nil {
			reply, held = held, nil
		}
		c.proxy.mu.Unlock()
		if cut {
			c.cut()
			return
		}
		if len(reply) > 0 && !c.enqueue(queue, reply, false) {
			return
		}
	}
}

// replace drops and replaces the replies at the beginning of what the server has sent, as far as they are
// complete. The caller holds proxy.mu.
func (c *conn) replace(sent []byte) []byte {
	for (c.dropped > 0 || c.failReply != nil) && len(sent) >= 4 && len(sent) >= 4+uint24(sent) {
		rest := sent[4+uint24(sent):]
		if c.dropped > 0 {
			c.dropped--
			sent = rest
			continue
		}
		sent, c.failReply = append(c.failReply, rest...), nil
	}
	return sent
}

func (c *conn) enqueue(queue chan<- piece, bytes []byte, cut bool) bool {
	c.proxy.mu.Lock()
	due := time.Now().Add(c.proxy.delay)
	c.proxy.mu.Unlock()
	select {
	case queue <- piece{bytes, due, cut}:
		return true
	case <-c.done:
		return false
	}
}

// write passes the pieces of a queue on. When one side has ended, so does the whole connection.
func (c *conn) write(to *net.TCPConn, queue <-chan piece) {
	defer c.end()
	for piece := range queue {
		if !c.pass(piece.due) || piece.bytes == nil {
			return
		}
		if _, err := to.Write(piece.bytes); err != nil {
			return
		}
		if piece.cut {
			c.cut()
			return
		}
	}
}

// pass waits until what is due at a time may go on, and reports false if the connection is over before.
func (c *conn) pass(due time.Time) bool {
	if wait := time.Until(due); wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-c.done:
			return false
		}
	}
	for {
		c.proxy.mu.Lock()
		hole, thaw := c.proxy.hole, c.proxy.thaw
		c.proxy.mu.Unlock()
		switch {
		case hole:
			<-c.done
			return false
		case thaw == nil:
			return true
		}
		select {
		case <-thaw:
		case <-c.done:
			return false
		}
	}
}
