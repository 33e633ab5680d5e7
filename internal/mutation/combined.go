package main

// combined has mutations of requests that share a statement.
var combined = []mutation{
	{
		"requests that are pending together share a statement", "internal/store/combine.go",
		"|| len(requests) == maxCombined {", "|| len(requests) == 1 {",
		"TestCombinedRequests$",
	},
	{
		"a batch has no name twice", "internal/store/combine.go",
		"if _, found := names[name]; found ||", "if _, found := names[name]; found && false ||",
		"TestSameNameTwice",
	},
	{
		"a request that is pending is not sent after its call", "internal/store/combine.go",
		"bool { return p == r })", "bool { return p == nil && r != nil })",
		"TestCallOfABatchEnds",
	},
	{
		"a batch ends when all its calls have", "internal/store/combine.go",
		"if b.calls--; b.calls == 0 {", "if b.calls--; b.calls < 0 {",
		"TestHangingBatch",
	},
	{
		"a batch without a reply delays no other", "internal/store/combine.go",
		"b.slow, c.busy = true, false", "b.slow, c.busy = true, true",
		"TestHangingBatch",
	},
	{
		"a grant of a batch whose call has ended is no hold", "internal/store/combined.go",
		"\t\t\tunwanted = append(unwanted, r.request.Claim)\n\t\t\ts.HoldEnded()", "\t\t\tunwanted = append(unwanted, r.request.Claim)",
		"TestCallOfABatchEnds",
	},
	{
		"a grant of a batch whose call has ended is released", "internal/store/combined.go",
		"if len(unwanted) > 0 {", "if len(unwanted) > len(batch) {",
		"TestCallOfABatchEnds",
	},
	{
		"a batch that does not know what it took refuses no call", "internal/store/combined.go",
		"if int64(len(granted)) != taken.rows {", "if taken.rows < 0 {",
		"TestBatchBesideAStaleRead",
	},
	{
		"a lease that a batch may have begun counts from it", "internal/store/acquire.go",
		"\t\tg.Sent = began\n", "\t\t_ = began\n",
		"TestBatchWithALostAnswer",
	},
	{
		"a request whose batch may have taken the row has an unknown outcome", "internal/store/acquire.go",
		"err = PartlySent{err}\n", "err = NotSent{err}\n",
		"TestErrorAfterABatch",
	},
	{
		"a request recognizes its own row while that is locked", "internal/store/acquire.go",
		"case row.Own:", "case row.Own && false:",
		"TestBatchWithALostAnswer",
	},
	{
		"a lost lock is not among those that a batch released", "internal/store/combined.go",
		"case found && duration(row.Released) <= within:", "case found:",
		"TestReleasedOf",
	},
	{
		"if a batch released only some rows, their times show which", "internal/store/combined.go",
		" || rows[claims[i].Name].Released == instant {", " || instant < -1 {",
		"TestReleasedOf",
	},
	{
		"a release that was sent before is not combined", "internal/store/hold.go",
		" && ctx.Value(repeatedKey{}) == nil {", " {",
		"TestReleasesThatAreNotCombined",
	},
	{
		"a release of a row that is not held is not combined", "internal/store/hold.go",
		"crowded && ctx.Value(notHeldKey{}) == nil &&", "crowded &&",
		"TestReleasesThatAreNotCombined",
	},
}
