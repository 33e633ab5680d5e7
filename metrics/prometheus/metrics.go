// Package prommysqllock provides Prometheus metrics for a mysqllock.Locker:
//
//	durations := prommysqllock.NewDurations("mysqllock")
//	locker, err := mysqllock.New(db, mysqllock.WithObserver(durations.Observer()))
//	...
//	registry.MustRegister(prommysqllock.NewCollector(locker, "mysqllock"), durations)
//
// Durations are optional. Each metric has the label table, which distinguishes the Lockers of a process.
// No metric has the name of a lock, because there are too many names.
package prommysqllock

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mysqllock/mysqllock"
)

// A stat is a metric for one field of [mysqllock.Stats].
type stat struct {
	name, help string
	kind       prometheus.ValueType
	value      func(s mysqllock.Stats) int64
}

const (
	counter = prometheus.CounterValue
	gauge   = prometheus.GaugeValue
)

var stats = []stat{
	{"locks_held", "Locks that are held now.", gauge, func(s mysqllock.Stats) int64 { return int64(s.Held) }},
	{"goroutines_waiting", "Goroutines that wait for a lock now.", gauge, func(s mysqllock.Stats) int64 { return int64(s.Waiting) }},
	{"acquired_total", "Locks acquired, re-entries not counted.", counter, func(s mysqllock.Stats) int64 { return s.Acquired }},
	{"not_acquired_total", "Calls that ended while another owner held the lock.", counter, func(s mysqllock.Stats) int64 { return s.NotAcquired }},
	{"unavailable_total", "Calls that ended while the database could not be asked or did not answer.", counter, func(s mysqllock.Stats) int64 { return s.Unavailable }},
	{"reentered_total", "Locks re-entered by their owner.", counter, func(s mysqllock.Stats) int64 { return s.Reentered }},
	{"released_total", "Locks released, or handed over inside the process.", counter, func(s mysqllock.Stats) int64 { return s.Released }},
	{"lost_total", "Locks lost: the lease ended or was taken away before the release.", counter, func(s mysqllock.Stats) int64 { return s.Lost }},
	{"renewals_total", "Leases renewed.", counter, func(s mysqllock.Stats) int64 { return s.Renewals }},
	{"renewal_errors_total", "Statements that failed to renew leases.", counter, func(s mysqllock.Stats) int64 { return s.RenewalErrors }},
	{"statements_total", "Statements sent to the database.", counter, func(s mysqllock.Stats) int64 { return s.Statements }},
}

type collector struct {
	locker *mysqllock.Locker
	descs  []*prometheus.Desc // of stats
}

// NewCollector returns a collector of locker's Stats, similar to collectors.NewDBStatsCollector. table is
// the value of the label: the Locker's table, or another text that distinguishes the Locker from others
// in the registry. A scrape sends nothing to the database.
func NewCollector(locker *mysqllock.Locker, table string) prometheus.Collector {
	c := &collector{locker: locker}
	for _, s := range stats {
		c.descs = append(c.descs, prometheus.NewDesc("mysqllock_"+s.name, s.help, nil, prometheus.Labels{"table": table}))
	}
	return c
}

func (c *collector) Describe(descs chan<- *prometheus.Desc) {
	for _, desc := range c.descs {
		descs <- desc
	}
}

func (c *collector) Collect(metrics chan<- prometheus.Metric) {
	now := c.locker.Stats()
	for i, s := range stats {
		metrics <- prometheus.MustNewConstMetric(c.descs[i], s.kind, float64(s.value(now)))
	}
}

// Durations are histograms of the duration of calls that acquire, and of the time for which locks were
// held, by mode and outcome. They are both classic and native histograms.
type Durations struct {
	acquire, hold *prometheus.HistogramVec
}

// NewDurations returns histograms for the Locker to which their Observer is passed. table is the value of
// the label, as in [NewCollector].
func NewDurations(table string) *Durations {
	return &Durations{
		acquire: histogram(table, "acquire_duration_seconds", "How long calls took to acquire a lock, or to give up.",
			[]float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
			"acquired", "reentered", "not_acquired", "unavailable", "error"),
		hold: histogram(table, "hold_duration_seconds", "How long locks were held.",
			[]float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200},
			"released", "lost", "closed", "error"),
	}
}

// modes are the values of mysqllock.AcquireInfo.Mode.
var modes = []string{"exclusive", "shared", "permit"}

// histogram returns a histogram that has a series for each mode and outcome from the start, so that the
// first event of a kind appears as an increase.
func histogram(table, name, help string, buckets []float64, outcomes ...string) *prometheus.HistogramVec {
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "mysqllock_" + name, Help: help, ConstLabels: prometheus.Labels{"table": table},
		Buckets:                     buckets,
		NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160, NativeHistogramMinResetDuration: time.Hour,
	}, []string{"mode", "outcome"})
	for _, mode := range modes {
		for _, outcome := range outcomes {
			h.WithLabelValues(mode, outcome)
		}
	}
	return h
}

// Observer returns the Observer that fills the histograms. Pass it to one Locker, with
// [mysqllock.WithObserver].
func (d *Durations) Observer() mysqllock.Observer {
	return mysqllock.Observer{
		AcquireEnd: func(_ context.Context, info mysqllock.AcquireInfo) {
			d.acquire.WithLabelValues(info.Mode, info.Outcome()).Observe(info.Waited.Seconds())
		},
		HoldEnd: func(_ context.Context, info mysqllock.HoldInfo) {
			d.hold.WithLabelValues(info.Mode, info.Outcome()).Observe(info.Held.Seconds())
		},
	}
}

// Describe implements [prometheus.Collector].
func (d *Durations) Describe(descs chan<- *prometheus.Desc) {
	d.acquire.Describe(descs)
	d.hold.Describe(descs)
}

// Collect implements [prometheus.Collector].
func (d *Durations) Collect(metrics chan<- prometheus.Metric) {
	d.acquire.Collect(metrics)
	d.hold.Collect(metrics)
}
