package health

import "time"

// FireAfter returns every condition but those of features, and how long it must hold before its alert
// fires: the for: of its rule in deploy/prometheus/weir.rules.yml. It is zero if
// the condition already contains a time or a count.
func FireAfter() map[string]time.Duration {
	return map[string]time.Duration{
		"WeirDatabaseDown":          time.Minute,
		"WeirNoConsumer":            time.Minute, // a restart
		"WeirNoEvents":              0,
		"WeirDisconnected":          0,
		"WeirReconnectsFail":        0,
		"WeirLagCritical":           time.Minute,
		"WeirLag":                   time.Minute,
		"WeirHostLate":              5 * time.Minute, // a few late events of a quiet stream
		"WeirQueueDeep":             time.Minute,
		"WeirQueueUnprocessed":      time.Minute,
		"WeirQueuePaused":           10 * time.Minute, // an operator may have paused it
		"WeirBackfillsWait":         15 * time.Minute, // a first start adds hundreds at once
		"WeirDeadLetters":           0,
		"WeirCollectionDeadLetters": 0,
		"WeirGapOpen":               10 * time.Minute, // most gaps are closed by then
		"WeirDatabaseLarge":         0,
		"WeirAuditOld":              0,
		"WeirAuditFails":            0,
		"WeirAuditScore":            0,
	}
}

// ResolveAfter is how long a condition must be absent before its alert is resolved:
// the rules' keep_firing_for:. A condition that returns earlier continues the same
// alert.
const ResolveAfter = 5 * time.Minute
