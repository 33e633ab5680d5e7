package otelmysqllock_test

import (
	"context"
	"database/sql"
	"fmt"
	"reflect"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/internal/mysqltest"
	otelmysqllock "github.com/mysqllock/mysqllock/metrics/otel"
	"github.com/mysqllock/mysqllock/mysqllocktest"
)

func TestMain(m *testing.M) { mysqltest.Main(m) }

// telemetry is an SDK that keeps everything in memory.
type telemetry struct {
	spans  *tracetest.SpanRecorder
	reader *sdkmetric.ManualReader
	traces *sdktrace.TracerProvider
	opts   []otelmysqllock.Option
}

func newTelemetry() telemetry {
	t := telemetry{spans: tracetest.NewSpanRecorder(), reader: sdkmetric.NewManualReader()}
	t.traces = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(t.spans))
	t.opts = []otelmysqllock.Option{
		otelmysqllock.WithTracerProvider(t.traces),
		otelmysqllock.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(t.reader))),
		otelmysqllock.WithAttributes(attribute.String("table", "locks")),
	}
	return t
}

// attributes returns them by key, without those that differ from run to run.
func attributes(t *testing.T, set []attribute.KeyValue) map[string]any {
	all := map[string]any{}
	for _, a := range set {
		all[string(a.Key)] = a.Value.AsInterface()
	}
	require.Equal(t, "locks", all["table"])
	delete(all, "table")
	for _, key := range []string{"mysqllock.waited", "mysqllock.held"} {
		if seconds, ok := all[key]; ok {
			require.Positive(t, seconds)
			delete(all, key)
		}
	}
	return all
}

// metrics returns the values of all metrics, with the mode and the outcome of those that
// have them; of histograms, the count.
func (tel telemetry) metrics(t *testing.T) map[string]int64 {
	var all metricdata.ResourceMetrics
	require.NoError(t, tel.reader.Collect(t.Context(), &all))
	values := map[string]int64{}
	for _, scope := range all.ScopeMetrics {
		require.Equal(t, "github.com/mysqllock/mysqllock/metrics/otel", scope.Scope.Name)
		for _, m := range scope.Metrics {
			switch points := m.Data.(type) {
			case metricdata.Sum[int64]:
				require.Equal(t, m.Name != "mysqllock.held" && m.Name != "mysqllock.waiting", points.IsMonotonic, m.Name)
				for _, p := range points.DataPoints {
					require.Empty(t, attributes(t, p.Attributes.ToSlice()))
					values[m.Name] = p.Value
				}
			case metricdata.Histogram[float64]:
				require.Equal(t, "s", m.Unit)
				for _, p := range points.DataPoints {
					got := attributes(t, p.Attributes.ToSlice())
					require.Len(t, got, 2)
					values[fmt.Sprintf("%s %s %s", m.Name, got["mysqllock.mode"], got["mysqllock.outcome"])] = int64(p.Count)
				}
			default:
				t.Fatalf("%s is a %T", m.Name, points)
			}
		}
	}
	return values
}

func open(t *testing.T, kind string, opts ...mysqllock.Option) *mysqllock.Locker {
	db, _ := mysqltest.Open(t, kind)
	locker, err := mysqllock.New(db, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, locker.Close()) })
	return locker
}

func onEach(t *testing.T, test func(t *testing.T, kind string)) {
	t.Parallel()
	for _, kind := range mysqltest.Kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			test(t, kind)
		})
	}
}

func TestSpans(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		tel := newTelemetry()
		observer, err := otelmysqllock.NewObserver(tel.opts...)
		require.NoError(t, err)
		locker := open(t, kind, mysqllock.WithObserver(observer))
		ctx, request := tel.traces.Tracer("service").Start(t.Context(), "request")

		// next returns the span that has just ended.
		ended := 0
		next := func() (span sdktrace.ReadOnlySpan, got map[string]any) {
			t.Helper()
			require.Len(t, tel.spans.Ended(), ended+1)
			span = tel.spans.Ended()[ended]
			ended++
			require.Equal(t, "mysqllock.acquire", span.Name())
			require.Equal(t, request.SpanContext().SpanID(), span.Parent().SpanID())
			return span, attributes(t, span.Attributes())
		}

		_, err = locker.TryLock(ctx, "secret", time.Second, mysqllock.AutoRenew)
		require.ErrorIs(t, err, mysqllock.ErrNoTable)
		span, got := next()
		require.Equal(t, map[string]any{"mysqllock.mode": "exclusive", "mysqllock.outcome": "error", "error.type": "1146"}, got)
		require.Equal(t, codes.Error, span.Status().Code)
		require.NotEmpty(t, span.Status().Description)
		require.NotContains(t, span.Status().Description, "secret")
		require.NoError(t, locker.CreateTable(ctx))

		x, err := locker.Lock(ctx, "secret", mysqllock.AutoRenew)
		require.NoError(t, err)
		span, got = next()
		require.Equal(t, map[string]any{"mysqllock.mode": "exclusive", "mysqllock.outcome": "acquired", "mysqllock.token": int64(x.Token()), "mysqllock.handed_over": false}, got)
		require.Equal(t, codes.Unset, span.Status().Code)

		again, err := locker.Lock(x.Context(), "secret", mysqllock.AutoRenew)
		require.NoError(t, err)
		require.NoError(t, again.Unlock())
		_, got = next()
		require.Equal(t, map[string]any{"mysqllock.mode": "exclusive", "mysqllock.outcome": "reentered", "mysqllock.token": int64(x.Token()), "mysqllock.handed_over": false}, got)

		_, err = locker.TryLock(ctx, "secret", 0, mysqllock.AutoRenew)
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
		span, got = next()
		require.Equal(t, map[string]any{"mysqllock.mode": "exclusive", "mysqllock.outcome": "not_acquired"}, got)
		require.Equal(t, codes.Unset, span.Status().Code)

		passed := make(chan *mysqllock.Lock)
		go func() {
			k, _ := locker.Lock(ctx, "secret", mysqllock.AutoRenew)
			passed <- k
		}()
		require.Eventually(t, func() bool { return locker.Stats().Waiting == 1 }, 10*time.Second, time.Millisecond)
		require.NoError(t, x.Unlock())
		y := <-passed
		_, got = next()
		require.Equal(t, map[string]any{"mysqllock.mode": "exclusive", "mysqllock.outcome": "acquired", "mysqllock.token": int64(y.Token()), "mysqllock.handed_over": true}, got)

		_, err = locker.ForceUnlock(ctx, "secret")
		require.NoError(t, err)
		require.ErrorIs(t, y.Unlock(), mysqllock.ErrLost)
		request.End()
		events := tel.spans.Ended()[ended].Events()
		require.Len(t, events, 1)
		require.Equal(t, "mysqllock.lost", events[0].Name)
		require.Equal(t, map[string]any{"mysqllock.mode": "exclusive", "mysqllock.token": int64(y.Token())}, attributes(t, events[0].Attributes))

		require.Equal(t, map[string]int64{
			"mysqllock.acquire.duration exclusive error":        1,
			"mysqllock.acquire.duration exclusive acquired":     2,
			"mysqllock.acquire.duration exclusive reentered":    1,
			"mysqllock.acquire.duration exclusive not_acquired": 1,
			"mysqllock.hold.duration exclusive released":        1,
			"mysqllock.hold.duration exclusive lost":            1,
		}, tel.metrics(t))
	})
}

// A call that gets no answer from the database is an error of its span, with an
// outcome of its own.
func TestUnavailable(t *testing.T) {
	t.Parallel()
	tel := newTelemetry()
	observer, err := otelmysqllock.NewObserver(tel.opts...)
	require.NoError(t, err)
	db, err := sql.Open("mysql", "tcp(127.0.0.1:1)/")
	require.NoError(t, err)
	defer db.Close()
	locker, err := mysqllock.New(db, mysqllock.WithObserver(observer))
	require.NoError(t, err)
	defer locker.Close()
	registration, err := otelmysqllock.RegisterStats(locker, tel.opts...)
	require.NoError(t, err)
	defer registration.Unregister()
	_, err = locker.TryLock(t.Context(), "secret", 0, mysqllock.AutoRenew)
	require.ErrorIs(t, err, mysqllock.ErrUnavailable)

	spans := tel.spans.Ended()
	require.Len(t, spans, 1)
	require.Equal(t, map[string]any{"mysqllock.mode": "exclusive", "mysqllock.outcome": "unavailable", "error.type": "unavailable"}, attributes(t, spans[0].Attributes()))
	require.Equal(t, codes.Error, spans[0].Status().Code)
	require.Contains(t, spans[0].Status().Description, "connection refused")
	require.NotContains(t, spans[0].Status().Description, "secret")
	got := tel.metrics(t)
	require.EqualValues(t, 1, got["mysqllock.unavailable"])
	require.EqualValues(t, 1, got["mysqllock.acquire.duration exclusive unavailable"])
	require.Zero(t, got["mysqllock.not_acquired"])
}

// Observers that begin spans of their own do not get each other's.
func TestSeveralObservers(t *testing.T) {
	first, second := newTelemetry(), newTelemetry()
	one, err := otelmysqllock.NewObserver(first.opts...)
	require.NoError(t, err)
	other, err := otelmysqllock.NewObserver(second.opts...)
	require.NoError(t, err)
	locker := mysqllocktest.New(t, mysqllock.WithObserver(one), mysqllock.WithObserver(other))
	ctx, request := first.traces.Tracer("service").Start(t.Context(), "request")
	lock, err := locker.TryLock(ctx, "x", 0, mysqllock.AutoRenew)
	require.NoError(t, err)
	for _, tel := range []telemetry{first, second} {
		spans := tel.spans.Ended()
		require.Len(t, spans, 1)
		require.Equal(t, map[string]any{"mysqllock.mode": "exclusive", "mysqllock.outcome": "acquired", "mysqllock.token": int64(lock.Token()), "mysqllock.handed_over": false}, attributes(t, spans[0].Attributes()))
	}
	_, err = locker.ForceUnlock(ctx, "x")
	require.NoError(t, err)
	require.ErrorIs(t, lock.Unlock(), mysqllock.ErrLost)
	request.End()
	events := first.spans.Ended()[1].Events()
	require.Len(t, events, 1)
	require.Equal(t, "mysqllock.lost", events[0].Name)
}

func TestLockName(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		tel := newTelemetry()
		observer, err := otelmysqllock.NewObserver(append(tel.opts, otelmysqllock.WithLockName())...)
		require.NoError(t, err)
		locker := open(t, kind, mysqllock.WithObserver(observer))
		require.NoError(t, locker.CreateTable(t.Context()))
		require.NoError(t, locker.Do(t.Context(), "x", 0, mysqllock.AutoRenew, func(context.Context) error { return nil }))
		_, err = locker.TryLock(t.Context(), "y", 0, -1)
		require.ErrorIs(t, err, mysqllock.ErrInvalidLease)
		spans := tel.spans.Ended()
		require.Len(t, spans, 2)
		require.Equal(t, "x", attributes(t, spans[0].Attributes())["mysqllock.name"])
		require.Equal(t, map[string]any{"mysqllock.name": "y", "mysqllock.mode": "exclusive", "mysqllock.outcome": "error", "error.type": "invalid"}, attributes(t, spans[1].Attributes()))
		require.Equal(t, err.Error(), spans[1].Status().Description)
		tel.metrics(t) // have no name
	})
}

// Spans and durations have the mode that was requested.
func TestModes(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		tel := newTelemetry()
		observer, err := otelmysqllock.NewObserver(tel.opts...)
		require.NoError(t, err)
		locker := open(t, kind, mysqllock.WithObserver(observer))
		require.NoError(t, locker.CreateTable(t.Context()))
		r, err := locker.RLock(t.Context(), "x", mysqllock.AutoRenew)
		require.NoError(t, err)
		_, err = locker.TryLock(r.Context(), "x", 0, mysqllock.AutoRenew)
		require.ErrorIs(t, err, mysqllock.ErrUpgrade)
		permit, err := locker.Semaphore("x", 1).Acquire(t.Context(), mysqllock.AutoRenew)
		require.NoError(t, err)
		_, err = locker.Semaphore("x", 0).TryAcquire(t.Context(), 0, mysqllock.AutoRenew)
		require.ErrorIs(t, err, mysqllock.ErrInvalidLimit)
		require.NoError(t, r.Unlock())
		require.NoError(t, permit.Unlock())

		spans := tel.spans.Ended()
		require.Len(t, spans, 4)
		for i, want := range []map[string]any{
			{"mysqllock.mode": "shared", "mysqllock.outcome": "acquired", "mysqllock.token": int64(r.Token()), "mysqllock.handed_over": false},
			{"mysqllock.mode": "exclusive", "mysqllock.outcome": "error", "error.type": "upgrade"},
			{"mysqllock.mode": "permit", "mysqllock.outcome": "acquired", "mysqllock.token": int64(permit.Token()), "mysqllock.handed_over": false},
			{"mysqllock.mode": "permit", "mysqllock.outcome": "error", "error.type": "invalid"},
		} {
			require.Equal(t, want, attributes(t, spans[i].Attributes()))
		}
		require.Equal(t, map[string]int64{
			"mysqllock.acquire.duration shared acquired": 1,
			"mysqllock.acquire.duration exclusive error": 1,
			"mysqllock.acquire.duration permit acquired": 1,
			"mysqllock.acquire.duration permit error":    1,
			"mysqllock.hold.duration shared released":    1,
			"mysqllock.hold.duration permit released":    1,
		}, tel.metrics(t))
	})
}

// Each field of Stats is a metric, which ends with its registration.
func TestStats(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		tel := newTelemetry()
		locker := open(t, kind)
		require.NoError(t, locker.CreateTable(t.Context()))
		registration, err := otelmysqllock.RegisterStats(locker, tel.opts...)
		require.NoError(t, err)
		x, err := locker.Lock(t.Context(), "x", mysqllock.AutoRenew)
		require.NoError(t, err)
		_, err = locker.Lock(x.Context(), "x", mysqllock.AutoRenew)
		require.NoError(t, err)
		_, err = locker.TryLock(t.Context(), "x", 0, mysqllock.AutoRenew)
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
		y, err := locker.Lock(t.Context(), "y", mysqllock.AutoRenew)
		require.NoError(t, err)
		require.NoError(t, y.Unlock())

		got := tel.metrics(t)
		require.Len(t, got, reflect.TypeFor[mysqllock.Stats]().NumField())
		require.Positive(t, got["mysqllock.statements"])
		delete(got, "mysqllock.statements")
		require.Equal(t, map[string]int64{
			"mysqllock.held": 1, "mysqllock.waiting": 0,
			"mysqllock.acquired": 2, "mysqllock.not_acquired": 1, "mysqllock.unavailable": 0, "mysqllock.reentered": 1,
			"mysqllock.released": 1, "mysqllock.lost": 0,
			"mysqllock.renewals": 0, "mysqllock.renewal.errors": 0,
		}, got)
		require.NoError(t, registration.Unregister())
		require.Empty(t, tel.metrics(t))
	})
}
