package health

import "time"

// Held is every condition, and how long it must hold before somebody is told:
// the for: of its rule in deploy/prometheus/weir.rules.yml. Zero where the
// condition is about a time or a count already.
func Held() map[string]time.Duration {
	return map[string]time.Duration{
		"WeirDatabaseDown":   time.Minute,
		"WeirNoConsumer":     time.Minute, // a restart
		"WeirNoEvents":       0,
		"WeirDisconnected":   0,
		"WeirReconnectsFail": 0,
		"WeirLagCritical":    time.Minute,
		"WeirLag":            time.Minute,
		"WeirQueueDeep":      time.Minute,
		"WeirQueuePaused":    10 * time.Minute, // somebody is at work
		"WeirBackfillsWait":  15 * time.Minute, // a first start brings hundreds at once
		"WeirDeadLetters":    0,
		"WeirGapOpen":        10 * time.Minute, // most are closed by then
		"WeirDatabaseLarge":  0,
		"WeirAuditOld":       0,
		"WeirAuditFails":     0,
		"WeirAuditScore":     0,
	}
}

// GoneFor is how long a condition must be gone before it counts as resolved: the
// rules' keep_firing_for:. One that comes back earlier was never away.
const GoneFor = 5 * time.Minute
