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

// limits are the limits that a relay states, see NIP-11. A relay may not keep to them.
type limits struct {
	Page          int `json:"max_limit"`          // events per page
	Subscriptions int `json:"max_subscriptions"`  // at once
	Message       int `json:"max_message_length"` // bytes of a message to the relay; 0: not stated

	named bool // the relay states the length of a page
	syncs bool // the relay supports comparing sets of events
}

// The limits of a relay that states none.
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

// readLimits reads a relay's limits. Most errors here are no reason not to read the relay.
func readLimits(ctx context.Context, client *http.Client, relay, userAgent string, within time.Duration, log *slog.Logger) limits {
	found, err := askLimits(ctx, client, relay, userAgent, within)
	if err != nil {
		log.Debug("relay_limits_unknown", "relay", relay, "error", err)
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
	defer response.Body.Close() // the body was read
	var document struct {
		Limitation limits `json:"limitation"`
		NIPs       []any  `json:"supported_nips"`
	}
	err = json.NewDecoder(io.LimitReader(response.Body, 64<<10)).Decode(&document)
	document.Limitation.syncs = slices.Contains(document.NIPs, any(77.0))
	return document.Limitation, err
}
