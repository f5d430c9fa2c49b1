package nostr

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"
)

// limits are what a relay says of itself, see NIP-11. Nothing of it is guaranteed.
type limits struct {
	Page          int `json:"max_limit"`          // events of a page
	Subscriptions int `json:"max_subscriptions"`  // at once
	Message       int `json:"max_message_length"` // bytes of a message to it; 0: not said

	named bool // it says how long a page is
	syncs bool // it says that it compares sets of events
}

// The limits of a relay that names none.
const (
	usualPage          = 500
	usualSubscriptions = 20
)

// authors returns how many authors one filter may name: each takes 67 bytes of the message.
func (l limits) authors() int {
	const besides, each = 1024, 67
	if l.Message <= 0 {
		return maxAuthors
	}
	return min(maxAuthors, max(1, (l.Message-besides)/each))
}

// readLimits asks a relay for its limits. Most of what can go wrong here is no reason not to
// read it.
func readLimits(ctx context.Context, client *http.Client, relay, userAgent string, within time.Duration, log *slog.Logger) limits {
	found, err := askLimits(ctx, client, relay, userAgent, within)
	if err != nil {
		log.Info("relay_limits_unknown", "relay", relay, "error", err)
	}
	if found.named = found.Page >= 1; !found.named || found.Page > 10*usualPage {
		found.Page = usualPage
	}
	if found.Subscriptions < 2 || found.Subscriptions > 10*usualSubscriptions {
		found.Subscriptions = usualSubscriptions
	}
	return found
}

func askLimits(ctx context.Context, client *http.Client, relay, userAgent string, within time.Duration) (limits, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	if rest, ok := strings.CutPrefix(relay, "ws"); ok {
		relay = "http" + rest
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, relay, nil)
	if err != nil {
		return limits{}, err
	}
	request.Header.Set("Accept", "application/nostr+json")
	request.Header.Set("User-Agent", userAgent)
	response, err := client.Do(request)
	if err != nil {
		return limits{}, err
	}
	defer response.Body.Close() //nolint:errcheck // it was read
	var document struct {
		Limitation limits `json:"limitation"`
		NIPs       []any  `json:"supported_nips"`
	}
	err = json.NewDecoder(io.LimitReader(response.Body, 64<<10)).Decode(&document)
	document.Limitation.syncs = slices.Contains(document.NIPs, any(77.0))
	return document.Limitation, err
}
