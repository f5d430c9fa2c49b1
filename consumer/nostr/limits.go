package nostr

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
)

// limits are what a relay says of itself, see NIP-11. Nothing of it is guaranteed.
type limits struct {
	Page          int `json:"max_limit"`         // events of a page
	Subscriptions int `json:"max_subscriptions"` // at once

	named bool // it says how long a page is
}

// The limits of a relay that names none.
const (
	usualPage          = 500
	usualSubscriptions = 20
)

// limits asks the relay for its limits. Most of what can go wrong here is no reason not to
// read it.
func (c *Client) limits(ctx context.Context) limits {
	found, err := c.readLimits(ctx)
	if err != nil {
		c.log.Info("relay_limits_unknown", "error", err)
	}
	if found.named = found.Page >= 1; !found.named || found.Page > 10*usualPage {
		found.Page = usualPage
	}
	if found.Subscriptions < 2 || found.Subscriptions > 10*usualSubscriptions {
		found.Subscriptions = usualSubscriptions
	}
	return found
}

func (c *Client) readLimits(ctx context.Context) (limits, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.DialTimeout)
	defer cancel()
	at := c.cfg.Endpoints[0]
	if rest, ok := strings.CutPrefix(at, "ws"); ok {
		at = "http" + rest
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return limits{}, err
	}
	request.Header.Set("Accept", "application/nostr+json")
	request.Header.Set("User-Agent", c.cfg.UserAgent)
	response, err := c.cfg.HTTPClient.Do(request)
	if err != nil {
		return limits{}, err
	}
	defer response.Body.Close() //nolint:errcheck // it was read
	var document struct {
		Limitation limits `json:"limitation"`
	}
	err = json.NewDecoder(io.LimitReader(response.Body, 64<<10)).Decode(&document)
	return document.Limitation, err
}
