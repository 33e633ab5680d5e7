package prommysqllock_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"os"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/internal/mysqltest"
	prommysqllock "github.com/mysqllock/mysqllock/metrics/prometheus"
)

func TestMain(m *testing.M) { mysqltest.Main(m) }

func open(t testing.TB, kind string, opts ...mysqllock.Option) *mysqllock.Locker {
	db, _ := mysqltest.Open(t, kind)
	locker, err := mysqllock.New(db, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, locker.Close()) })
	require.NoError(t, locker.CreateTable(t.Context()))
	return locker
}

// gather returns the values of all metrics, with the mode, unless it is exclusive, and
// the outcome of those that have them; of histograms, the count.
func gather(t *testing.T, registry prometheus.Gatherer) map[string]float64 {
	families, err := registry.Gather()
	require.NoError(t, err)
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, label := range m.GetLabel() {
				switch label.GetName() {
				case "mode":
					if label.GetValue() != "exclusive" {
						name += " " + label.GetValue()
					}
				case "outcome":
					name += " " + label.GetValue()
				default:
					require.Equal(t, "table", label.GetName())
					require.Equal(t, "locks", label.GetValue())
				}
			}
			switch f.GetType() {
			case dto.MetricType_GAUGE:
				values[name] = m.GetGauge().GetValue()
			case dto.MetricType_COUNTER:
				values[name] = m.GetCounter().GetValue()
			default:
				values[name] = float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return values
}

var otherMode = regexp.MustCompile(" (shared|permit) ")

func TestMetrics(t *testing.T) {
	t.Parallel()
	for _, kind := range mysqltest.Kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			durations := prommysqllock.NewDurations("locks")
			locker := open(t, kind, mysqllock.WithObserver(durations.Observer()))
			registry := prometheus.NewPedanticRegistry()
			registry.MustRegister(prommysqllock.NewCollector(locker, "locks"), durations)
			problems, err := testutil.GatherAndLint(registry)
			require.NoError(t, err)
			require.Empty(t, problems)

			x, err := locker.Lock(ctx, "x", mysqllock.AutoRenew)
			require.NoError(t, err)
			_, err = locker.TryLock(ctx, "x", 0, mysqllock.AutoRenew)
			require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
			_, err = locker.TryLock(ctx, "", 0, mysqllock.AutoRenew)
			require.ErrorIs(t, err, mysqllock.ErrInvalidName)
			again, err := locker.Lock(x.Context(), "x", mysqllock.AutoRenew)
			require.NoError(t, err)
			y, err := locker.Lock(ctx, "y", mysqllock.AutoRenew)
			require.NoError(t, err)
			_, err = locker.ForceUnlock(ctx, "y")
			require.NoError(t, err)
			require.ErrorIs(t, y.Unlock(), mysqllock.ErrLost)
			waiting, cancel := context.WithCancel(ctx)
			waited := make(chan error)
			go func() {
				_, err := locker.Lock(waiting, "x", mysqllock.AutoRenew)
				waited <- err
			}()
			require.Eventually(t, func() bool { return locker.Stats().Waiting == 1 }, 10*time.Second, time.Millisecond)

			got := gather(t, registry)
			require.Positive(t, got["mysqllock_statements_total"])
			for name := range got {
				if name == "mysqllock_statements_total" || got[name] == 0 && otherMode.MatchString(name) {
					delete(got, name)
				}
			}
			require.Equal(t, map[string]float64{
				"mysqllock_locks_held":                            1,
				"mysqllock_goroutines_waiting":                    1,
				"mysqllock_acquired_total":                        2,
				"mysqllock_not_acquired_total":                    1,
				"mysqllock_unavailable_total":                     0,
				"mysqllock_reentered_total":                       1,
				"mysqllock_released_total":                        0,
				"mysqllock_lost_total":                            1,
				"mysqllock_renewals_total":                        0,
				"mysqllock_renewal_errors_total":                  0,
				"mysqllock_acquire_duration_seconds acquired":     2,
				"mysqllock_acquire_duration_seconds not_acquired": 1,
				"mysqllock_acquire_duration_seconds unavailable":  0,
				"mysqllock_acquire_duration_seconds reentered":    1,
				"mysqllock_acquire_duration_seconds error":        1,
				"mysqllock_hold_duration_seconds released":        0,
				"mysqllock_hold_duration_seconds lost":            1,
				"mysqllock_hold_duration_seconds closed":          0,
				"mysqllock_hold_duration_seconds error":           0,
			}, got)

			cancel()
			require.ErrorIs(t, <-waited, context.Canceled)
			require.NoError(t, again.Unlock())
			require.NoError(t, x.Unlock())
			got = gather(t, registry)
			require.Zero(t, got["mysqllock_locks_held"])
			require.Zero(t, got["mysqllock_goroutines_waiting"])
			require.Equal(t, 1., got["mysqllock_released_total"])
			require.Equal(t, 1., got["mysqllock_hold_duration_seconds released"])
		})
	}
}

// The histograms have a series for each mode and outcome from the start.
func TestModes(t *testing.T) {
	t.Parallel()
	for _, kind := range mysqltest.Kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			durations := prommysqllock.NewDurations("locks")
			locker := open(t, kind, mysqllock.WithObserver(durations.Observer()))
			registry := prometheus.NewPedanticRegistry()
			registry.MustRegister(prommysqllock.NewCollector(locker, "locks"), durations)
			got := gather(t, registry)
			for _, mode := range []string{"", " shared", " permit"} {
				for _, outcome := range []string{"acquired", "reentered", "not_acquired", "unavailable", "error"} {
					require.Contains(t, got, "mysqllock_acquire_duration_seconds"+mode+" "+outcome)
				}
				for _, outcome := range []string{"released", "lost", "closed", "error"} {
					require.Contains(t, got, "mysqllock_hold_duration_seconds"+mode+" "+outcome)
				}
			}

			a, err := locker.RLock(ctx, "x", mysqllock.AutoRenew)
			require.NoError(t, err)
			b, err := locker.RLock(ctx, "x", mysqllock.AutoRenew)
			require.NoError(t, err)
			_, err = locker.TryLock(ctx, "x", 0, mysqllock.AutoRenew)
			require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
			permit, err := locker.Semaphore("x", 1).Acquire(ctx, mysqllock.AutoRenew)
			require.NoError(t, err)
			_, err = locker.Semaphore("x", 1).TryAcquire(ctx, 0, mysqllock.AutoRenew)
			require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
			require.NoError(t, a.Unlock())
			require.NoError(t, permit.Unlock())

			got = gather(t, registry)
			require.Equal(t, 2., got["mysqllock_acquire_duration_seconds shared acquired"])
			require.Equal(t, 1., got["mysqllock_hold_duration_seconds shared released"])
			require.Equal(t, 1., got["mysqllock_acquire_duration_seconds not_acquired"])
			require.Zero(t, got["mysqllock_acquire_duration_seconds acquired"])
			require.Equal(t, 1., got["mysqllock_acquire_duration_seconds permit acquired"])
			require.Equal(t, 1., got["mysqllock_acquire_duration_seconds permit not_acquired"])
			require.Equal(t, 1., got["mysqllock_hold_duration_seconds permit released"])
			require.NoError(t, b.Unlock())
		})
	}
}

// Calls that get no answer from the database are a class of their own.
func TestUnavailable(t *testing.T) {
	t.Parallel()
	durations := prommysqllock.NewDurations("locks")
	locker := unreachable(t, mysqllock.WithObserver(durations.Observer()))
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(prommysqllock.NewCollector(locker, "locks"), durations)
	var wg sync.WaitGroup
	for _, wait := range []time.Duration{0, 0, 0, 200 * time.Millisecond} {
		wg.Go(func() {
			_, err := locker.TryLock(t.Context(), "x", wait, mysqllock.AutoRenew)
			assert.ErrorIs(t, err, mysqllock.ErrUnavailable)
		})
	}
	wg.Wait()
	got := gather(t, registry)
	require.Equal(t, 4., got["mysqllock_unavailable_total"])
	require.Equal(t, 4., got["mysqllock_acquire_duration_seconds unavailable"])
	require.Zero(t, got["mysqllock_not_acquired_total"])
	require.Zero(t, got["mysqllock_acquire_duration_seconds not_acquired"])
	require.Zero(t, got["mysqllock_acquire_duration_seconds error"])
}

// Each field of Stats is a metric.
func TestStats(t *testing.T) {
	t.Parallel()
	locker := closed(t)
	require.Equal(t, reflect.TypeFor[mysqllock.Stats]().NumField(), testutil.CollectAndCount(prommysqllock.NewCollector(locker, "x")))
}

// Lockers of two tables share a registry; two of one table do not.
func TestTables(t *testing.T) {
	t.Parallel()
	locker := closed(t)
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(prommysqllock.NewCollector(locker, "a")))
	require.NoError(t, registry.Register(prommysqllock.NewCollector(locker, "b")))
	require.NoError(t, registry.Register(prommysqllock.NewDurations("a")))
	require.NoError(t, registry.Register(prommysqllock.NewDurations("b")))
	require.Error(t, registry.Register(prommysqllock.NewCollector(locker, "a")))
	require.Error(t, registry.Register(prommysqllock.NewDurations("b")))
}

// unreachable returns a Locker without a server.
func unreachable(t *testing.T, opts ...mysqllock.Option) *mysqllock.Locker {
	db, err := sql.Open("mysql", "tcp(127.0.0.1:1)/")
	require.NoError(t, err)
	t.Cleanup(func() { db.Close() })
	locker, err := mysqllock.New(db, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { locker.Close() })
	return locker
}

// closed returns a Locker that is closed.
func closed(t *testing.T) *mysqllock.Locker {
	locker := unreachable(t)
	require.NoError(t, locker.Close())
	return locker
}

var (
	metricName = regexp.MustCompile(`\bmysqllock_\w+`)
	labelNames = regexp.MustCompile(`(?:[{,]\s*(\w+)\s*(?:=|!=|=~|!~)")|(?:\bby \(([\w, ]+)\))`)
)

// The dashboard queries what is exported, all of it, and no other labels.
func TestDashboard(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("grafana.json")
	require.NoError(t, err)
	var dashboard struct {
		Title  string
		UID    string
		Panels []struct {
			ID                 int
			Title, Description string
			Type               string
			Targets            []struct{ Expr, LegendFormat, RefID string }
			GridPos            struct{ H, W, X, Y int }
		}
		Templating struct {
			List []struct {
				Name, Type string
				Query      any
			}
		}
	}
	require.NoError(t, json.Unmarshal(text, &dashboard))
	require.NotEmpty(t, dashboard.Title)
	require.NotEmpty(t, dashboard.UID)

	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(prommysqllock.NewCollector(closed(t), "x"), prommysqllock.NewDurations("x"))
	families, err := registry.Gather()
	require.NoError(t, err)
	series, queried := map[string]string{}, map[string]bool{} // of which metric it is
	for _, f := range families {
		if f.GetType() != dto.MetricType_HISTOGRAM {
			series[f.GetName()] = f.GetName()
			continue
		}
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			series[f.GetName()+suffix] = f.GetName()
		}
	}
	variables := map[string]bool{"__rate_interval": true}
	check := func(expr string) {
		names := metricName.FindAllString(expr, -1)
		require.NotEmpty(t, names, expr)
		for _, name := range names {
			require.Contains(t, series, name, expr)
			queried[series[name]] = true
		}
		for _, m := range labelNames.FindAllStringSubmatch(expr, -1) {
			for _, label := range strings.Split(m[1]+m[2], ", ") {
				require.Contains(t, []string{"job", "instance", "table", "mode", "outcome", "le"}, label, expr)
			}
		}
		for _, m := range regexp.MustCompile(`\$(\w+)`).FindAllStringSubmatch(expr, -1) {
			require.True(t, variables[m[1]], expr)
		}
		require.Equal(t, strings.Count(expr, "("), strings.Count(expr, ")"), expr)
	}
	for _, v := range dashboard.Templating.List {
		if variables[v.Name] = true; v.Type == "query" {
			check(v.Query.(map[string]any)["query"].(string))
		}
	}
	ids := map[int]bool{}
	for _, p := range dashboard.Panels {
		require.False(t, ids[p.ID], "panel %d twice", p.ID)
		ids[p.ID] = true
		require.LessOrEqual(t, p.GridPos.X+p.GridPos.W, 24, p.Title)
		if p.Type == "row" {
			continue
		}
		require.NotEmpty(t, p.Targets, p.Title)
		require.NotEmpty(t, p.Description, p.Title)
		for _, target := range p.Targets {
			check(target.Expr)
		}
	}
	for _, f := range families {
		require.True(t, queried[f.GetName()], "%s is not on the dashboard", f.GetName())
	}
}
