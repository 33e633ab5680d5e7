// Package otelmysqllock provides OpenTelemetry spans and metrics for a mysqllock.Locker:
//
//	observer, err := otelmysqllock.NewObserver()
//	...
//	locker, err := mysqllock.New(db, mysqllock.WithObserver(observer))
//	...
//	registration, err := otelmysqllock.RegisterStats(locker)
//
// Both use the global providers unless an option sets another, and neither needs the other.
package otelmysqllock

import (
	"context"
	"errors"
	"strconv"

	"github.com/go-sql-driver/mysql"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/mysqllock/mysqllock"
)

const scope = "github.com/mysqllock/mysqllock/metrics/otel"

// The attributes of spans; metrics have mode and outcome alone.
const (
	modeKey       = attribute.Key("mysqllock.mode")
	outcomeKey    = attribute.Key("mysqllock.outcome")
	nameKey       = attribute.Key("mysqllock.name")
	tokenKey      = attribute.Key("mysqllock.token")
	waitedKey     = attribute.Key("mysqllock.waited") // seconds
	heldKey       = attribute.Key("mysqllock.held")   // seconds
	handedOverKey = attribute.Key("mysqllock.handed_over")
	errorKey      = attribute.Key("error.type") // of the semantic conventions
)

// Option changes a default of [NewObserver] and [RegisterStats].
type Option func(*config)

type config struct {
	tracers    trace.TracerProvider
	meters     metric.MeterProvider
	attributes []attribute.KeyValue
	names      bool
}

func configured(opts []Option) config {
	c := config{tracers: otel.GetTracerProvider(), meters: otel.GetMeterProvider()}
	for _, opt := range opts {
		opt(&c)
	}
	return c
}

// WithTracerProvider sets where spans go. The default is the global provider.
func WithTracerProvider(p trace.TracerProvider) Option { return func(c *config) { c.tracers = p } }

// WithMeterProvider sets where metrics go. The default is the global provider.
func WithMeterProvider(p metric.MeterProvider) Option { return func(c *config) { c.meters = p } }

// WithAttributes adds attributes to each span and metric, such as the table, where
// a process has several Lockers.
func WithAttributes(attributes ...attribute.KeyValue) Option {
	return func(c *config) { c.attributes = append(c.attributes, attributes...) }
}

// WithLockName adds the name of the lock to spans, as mysqllock.name. By default it
// is left out: names often tell of customers and orders. Metrics never have it:
// there are too many.
func WithLockName() Option { return func(c *config) { c.names = true } }

// observer has what the functions of the Observer use.
type observer struct {
	tracer        trace.Tracer
	acquire, hold metric.Float64Histogram
	attributes    []attribute.KeyValue
	names         bool
}

// NewObserver returns an Observer for [mysqllock.WithObserver], which several Lockers may share. It
// creates a span mysqllock.acquire for each acquire, and the histograms mysqllock.acquire.duration and
// mysqllock.hold.duration. It returns the error of the meter provider.
//
// The span is a child of the span in the context of TryLock and, if the database is traced too, the
// parent of the acquiring statements. It has the mode, the outcome, the token, the duration of the call,
// and whether the lock was handed over inside the process. Its status is an error for the outcomes
// "error" and "unavailable". If the lock is lost later, the span in the context of TryLock gets the event
// mysqllock.lost, unless that span has ended.
func NewObserver(opts ...Option) (mysqllock.Observer, error) {
	c := configured(opts)
	meter := c.meters.Meter(scope)
	acquire, err := meter.Float64Histogram("mysqllock.acquire.duration", metric.WithUnit("s"),
		metric.WithDescription("How long calls took to acquire a lock, or to give up."),
		metric.WithExplicitBucketBoundaries(.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60))
	if err != nil {
		return mysqllock.Observer{}, err
	}
	hold, err := meter.Float64Histogram("mysqllock.hold.duration", metric.WithUnit("s"),
		metric.WithDescription("How long locks were held."),
		metric.WithExplicitBucketBoundaries(.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200))
	if err != nil {
		return mysqllock.Observer{}, err
	}
	o := &observer{c.tracers.Tracer(scope), acquire, hold, c.attributes, c.names}
	return mysqllock.Observer{AcquireStart: o.acquireStart, AcquireEnd: o.acquireEnd, HoldEnd: o.holdEnd}, nil
}

// spans are those of one acquire. The observer is their key in its context, where another observer
// may have begun a span since.
type spans struct{ caller, own trace.Span }

func (o *observer) acquireStart(ctx context.Context, name string) context.Context {
	caller := trace.SpanFromContext(ctx)
	attributes := o.attributes
	if o.names {
		attributes = append(attributes[:len(attributes):len(attributes)], nameKey.String(name))
	}
	ctx, own := o.tracer.Start(ctx, "mysqllock.acquire", trace.WithAttributes(attributes...))
	return context.WithValue(ctx, o, spans{caller, own})
}

func (o *observer) acquireEnd(ctx context.Context, info mysqllock.AcquireInfo) {
	o.record(ctx, o.acquire, info.Waited.Seconds(), info.Mode, info.Outcome())
	of, ok := ctx.Value(o).(spans)
	if !ok {
		return // another observer has returned a context that does not come from ours
	}
	span := of.own
	defer span.End()
	if !span.IsRecording() {
		return
	}
	span.SetAttributes(modeKey.String(info.Mode), outcomeKey.String(info.Outcome()), waitedKey.Float64(info.Waited.Seconds()))
	switch info.Outcome() {
	case "acquired", "reentered":
		span.SetAttributes(tokenKey.Int64(int64(info.Token)), handedOverKey.Bool(info.HandedOver))
	case "error", "unavailable":
		span.SetAttributes(errorKey.String(errorType(info.Err)))
		err := info.Err
		if inner := errors.Unwrap(err); inner != nil && !o.names {
			err = inner // without the name of the lock
		}
		span.SetStatus(codes.Error, err.Error())
	}
}

func (o *observer) holdEnd(ctx context.Context, info mysqllock.HoldInfo) {
	o.record(ctx, o.hold, info.Held.Seconds(), info.Mode, info.Outcome())
	if info.Outcome() != "lost" {
		return
	}
	if of, ok := ctx.Value(o).(spans); ok && of.caller.IsRecording() {
		attributes := append(o.attributes[:len(o.attributes):len(o.attributes)],
			modeKey.String(info.Mode), tokenKey.Int64(int64(info.Token)), heldKey.Float64(info.Held.Seconds()))
		if o.names {
			attributes = append(attributes, nameKey.String(info.Name))
		}
		of.caller.AddEvent("mysqllock.lost", trace.WithAttributes(attributes...))
	}
}

func (o *observer) record(ctx context.Context, histogram metric.Float64Histogram, seconds float64, mode, outcome string) {
	histogram.Record(ctx, seconds, metric.WithAttributes(o.attributes...),
		metric.WithAttributes(modeKey.String(mode), outcomeKey.String(outcome)))
}

// errorType is the value of error.type: the number of a database's error, or a word.
func errorType(err error) string {
	var fromServer *mysql.MySQLError
	switch {
	case errors.As(err, &fromServer):
		return strconv.Itoa(int(fromServer.Number))
	case errors.Is(err, mysqllock.ErrUnavailable):
		return "unavailable"
	case errors.Is(err, mysqllock.ErrLost):
		return "lost"
	case errors.Is(err, mysqllock.ErrClosed):
		return "closed"
	case errors.Is(err, mysqllock.ErrUpgrade):
		return "upgrade"
	case errors.Is(err, mysqllock.ErrInvalidName), errors.Is(err, mysqllock.ErrInvalidLease), errors.Is(err, mysqllock.ErrInvalidLimit):
		return "invalid"
	default:
		return "_OTHER"
	}
}

// RegisterStats registers metrics for the Stats of locker, similar to otelsql.RegisterDBStatsMetrics.
// Collecting them sends nothing to the database. They are collected until Unregister is called on the
// returned Registration, or the provider ends. RegisterStats returns the error of the provider.
func RegisterStats(locker *mysqllock.Locker, opts ...Option) (metric.Registration, error) {
	c := configured(opts)
	i := instruments{meter: c.meters.Meter(scope), attributes: metric.WithAttributeSet(attribute.NewSet(c.attributes...))}
	i.gauge("mysqllock.held", "{lock}", "Locks that are held now.", func(s mysqllock.Stats) int64 { return int64(s.Held) })
	i.gauge("mysqllock.waiting", "{goroutine}", "Goroutines that wait for a lock now.", func(s mysqllock.Stats) int64 { return int64(s.Waiting) })
	i.counter("mysqllock.acquired", "{lock}", "Locks acquired, re-entries not counted.", func(s mysqllock.Stats) int64 { return s.Acquired })
	i.counter("mysqllock.not_acquired", "{call}", "Calls that ended while another owner held the lock.", func(s mysqllock.Stats) int64 { return s.NotAcquired })
	i.counter("mysqllock.unavailable", "{call}", "Calls that ended while the database could not be asked or did not answer.", func(s mysqllock.Stats) int64 { return s.Unavailable })
	i.counter("mysqllock.reentered", "{lock}", "Locks re-entered by their owner.", func(s mysqllock.Stats) int64 { return s.Reentered })
	i.counter("mysqllock.released", "{lock}", "Locks released, or handed over inside the process.", func(s mysqllock.Stats) int64 { return s.Released })
	i.counter("mysqllock.lost", "{lock}", "Locks lost: the lease ended or was taken away before the release.", func(s mysqllock.Stats) int64 { return s.Lost })
	i.counter("mysqllock.renewals", "{lease}", "Leases renewed.", func(s mysqllock.Stats) int64 { return s.Renewals })
	i.counter("mysqllock.renewal.errors", "{statement}", "Statements that failed to renew leases.", func(s mysqllock.Stats) int64 { return s.RenewalErrors })
	i.counter("mysqllock.statements", "{statement}", "Statements sent to the database.", func(s mysqllock.Stats) int64 { return s.Statements })
	if i.err != nil {
		return nil, i.err
	}
	return i.meter.RegisterCallback(func(_ context.Context, to metric.Observer) error {
		now := locker.Stats()
		for _, observe := range i.observe {
			observe(to, now)
		}
		return nil
	}, i.all...)
}

// instruments are made one after the other; err is the first that failed.
type instruments struct {
	meter      metric.Meter
	attributes metric.MeasurementOption
	all        []metric.Observable
	observe    []func(to metric.Observer, now mysqllock.Stats)
	err        error
}

func (i *instruments) gauge(name, unit, help string, value func(mysqllock.Stats) int64) {
	g, err := i.meter.Int64ObservableUpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(help))
	i.add(g, value, err)
}

func (i *instruments) counter(name, unit, help string, value func(mysqllock.Stats) int64) {
	c, err := i.meter.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(help))
	i.add(c, value, err)
}

func (i *instruments) add(instrument metric.Int64Observable, value func(mysqllock.Stats) int64, err error) {
	i.err = errors.Join(i.err, err)
	i.all = append(i.all, instrument)
	i.observe = append(i.observe, func(to metric.Observer, now mysqllock.Stats) {
		to.ObserveInt64(instrument, value(now), i.attributes)
	})
}
